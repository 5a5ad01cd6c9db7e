// What the parts around the agent are made of.

import type { ComponentChildren } from "preact";
import type { Act, Action } from "./confirm";

export function Panel({
  id,
  title,
  empty,
  isEmpty,
  wide,
  children,
}: {
  id: string;
  title: string;
  empty: ComponentChildren;
  isEmpty: boolean;
  wide?: boolean;
  children: ComponentChildren;
}) {
  return (
    <div class={wide && !isEmpty ? "panel card broad" : "panel card"} id={id} tabIndex={-1}>
      <h3>{title}</h3>
      {isEmpty ? <p class="empty">{empty}</p> : children}
    </div>
  );
}

/** A button for something that is asked about before it is done. */
export function Offer({ action, act }: { action: Action; act: Act }) {
  return (
    <button type="button" class={action.danger ? "danger" : undefined} onClick={() => act(action)}>
      <bdi>{action.verb}</bdi> …
    </button>
  );
}

/** A table that scrolls by itself where it is too wide; a column is its name, and whether it has numbers. */
export function Listing({
  label,
  columns,
  children,
}: {
  label: string;
  columns: [name: string, kind?: "number"][];
  children: ComponentChildren;
}) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map(([name, kind]) => (
              <th key={name} scope="col" class={kind}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
