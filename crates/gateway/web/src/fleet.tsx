// The gateways that share what they know: who they are, how their store does, and what each believes.

import { Listing, Panel } from "./panel";
import { count, money, seconds, words } from "./text";
import type { Fact, Fleet as State } from "./types";

/** How the store does, in a line. */
function Store({ of }: { of: State }) {
  const { store } = of;
  if (store.away)
    return (
      <p class="warn">
        <span aria-hidden="true">▲</span> The store <bdi>{store.name}</bdi> can not be reached
        {store.away_s !== null && <> for {seconds(store.away_s)}</>}: each gateway goes on by itself.{" "}
        {store.error && <bdi>{store.error}</bdi>}
      </p>
    );
  return (
    <p>
      By <bdi>{store.name}</bdi>: {count(store.commands)} commands, {count(store.waiting)} waiting,{" "}
      {store.outages === 1 ? "one outage" : `${count(store.outages)} outages`}.
    </p>
  );
}

/** Who says it, and who does not. */
function Believers({ fact, nodes }: { fact: Fact; nodes: number }) {
  const believe = fact.by.filter((one) => one.holds);
  return (
    <td class="name">
      <bdi>{believe.map((one) => one.node).join(", ")}</bdi> ({believe.length} of {nodes})
    </td>
  );
}

/** What is found of targets; what operators have is in their panels. */
const KINDS = ["rests", "breakers", "health", "windows"];

export function Fleet({ fleet }: { fleet: State | null }) {
  const isShared = fleet !== null && fleet.shared;
  const facts = (fleet?.facts ?? []).filter((one) => one.for_s !== null && KINDS.includes(one.kind));
  return (
    <Panel
      id="fleet"
      title="Fleet"
      isEmpty={!isShared}
      empty={
        <>
          This gateway is alone: <code>state.url</code> names a store by which several share what they know.
        </>
      }
      wide
    >
      {fleet !== null && isShared && (
        <>
          <Store of={fleet} />
          {(fleet.differ_in_configuration || fleet.differ_in_version) && (
            <p class="warn">
              <span aria-hidden="true">▲</span> The gateways differ in their{" "}
              {fleet.differ_in_configuration ? "configuration" : "version"}.
            </p>
          )}
          <Listing
            label="Gateways"
            columns={[["Gateway"], ["Address"], ["Version"], ["Configuration"], ["Up", "number"], ["Heard", "number"]]}
          >
            {fleet.nodes.map((one) => (
              <tr key={one.name}>
                <th scope="row" class="name">
                  <bdi>{one.name}</bdi>
                  {one.this && " (this one)"}
                </th>
                <td>
                  <bdi>{one.address || "–"}</bdi>
                </td>
                <td>{one.version || "–"}</td>
                <td>
                  <code>{one.configuration || "–"}</code>
                </td>
                <td class="number">{seconds(one.up_s)}</td>
                <td class="number">{one.this ? "–" : `${seconds(one.heard_ago_s)} ago`}</td>
              </tr>
            ))}
          </Listing>
          {facts.length > 0 && (
            <Listing label="What gateways have found" columns={[["What"], ["Of"], ["For", "number"], ["Found by"]]}>
              {facts.slice(0, 100).map((one) => (
                <tr key={`${one.kind} ${one.key}`}>
                  <td>{words(one.kind)}</td>
                  <th scope="row" class="name">
                    <bdi>{one.key}</bdi>
                  </th>
                  <td class="number">{seconds(one.for_s ?? 0)}</td>
                  <Believers fact={one} nodes={fleet.nodes.length} />
                </tr>
              ))}
            </Listing>
          )}
          {fleet.leases.spend.length + fleet.leases.rates.length > 0 && (
            <Listing
              label="What this gateway has leased"
              columns={[["Of"], ["Leased", "number"], ["In use", "number"]]}
            >
              {fleet.leases.spend.map((one) => (
                <tr key={`spend ${one.account}`}>
                  <th scope="row" class="name">
                    Cap of <bdi>{one.account}</bdi>
                  </th>
                  <td class="number">
                    {one.is_cost ? money(one.granted.micro_dollars) : `${count(one.granted.tokens)} tokens`}
                  </td>
                  <td class="number">{one.is_cost ? money(one.held.micro_dollars) : `${count(one.held.tokens)} tokens`}</td>
                </tr>
              ))}
              {fleet.leases.rates.map((one) => (
                <tr key={`rate ${one.target}`}>
                  <th scope="row" class="name">
                    Rate of <bdi>{one.target}</bdi>
                  </th>
                  <td class="number">{(one.ppm / 10_000).toFixed(1)} %</td>
                  <td class="number">–</td>
                </tr>
              ))}
            </Listing>
          )}
        </>
      )}
    </Panel>
  );
}
