// The requests, live: all of them by the feed, and those that a filter asks for by the gateway.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { clock, count, millis, money, original, words } from "./text";
import type { Frame, Summary } from "./types";

const OUTCOMES = ["running", "ok", "recovered", "failed", "cancelled"] as const;
const FIELDS = ["target", "tenant", "model", "reason"] as const;

type Filter = Record<(typeof FIELDS)[number] | "outcome", string>;

const NONE: Filter = { outcome: "", target: "", tenant: "", model: "", reason: "" };

/** How often the gateway is asked for what a filter wants, in milliseconds. */
const EVERY = 2_000;

/** How many are listed. */
const LISTED = 60;

export function outcomeOf(one: Summary): { kind: string; icon: string; word: string } {
  if (one.outcome === "running") return { kind: "note", icon: "◌", word: "running" };
  if (one.recovered) return { kind: "accent", icon: "↻", word: "recovered" };
  if (one.outcome === "ok") return { kind: "good", icon: "✔", word: "answered" };
  if (one.outcome === "cancelled") return { kind: "muted", icon: "⊘", word: "broken off" };
  return { kind: "bad", icon: "✖", word: "failed" };
}

export function Requests({ frame, open }: { frame: Frame; open: (id: string) => void }) {
  const [filter, setFilter] = useState<Filter>(NONE);
  const [found, setFound] = useState<Summary[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [held, setHeld] = useState<Summary[] | null>(null);
  const [asked, setAsked] = useState<Filter>(NONE);
  const isFiltered = Object.values(asked).some(Boolean);

  // What is typed is asked for when nobody types.
  useEffect(() => {
    const timer = setTimeout(() => setAsked(filter), 300);
    return () => clearTimeout(timer);
  }, [filter]);

  useEffect(() => {
    if (!isFiltered) {
      setFound(null);
      setError(null);
      return;
    }
    let gone = false;
    const load = (): void => {
      const query = new URLSearchParams({ limit: String(LISTED) });
      for (const [name, value] of Object.entries(asked)) if (value) query.set(name, original(value));
      get<{ requests: Summary[] }>(`/admin/requests?${query}`)
        .then((answer) => {
          if (gone) return;
          setFound(answer.requests);
          setError(null);
        })
        .catch((why: unknown) => {
          if (!gone) setError(why instanceof Error ? why.message : String(why));
        });
    };
    load();
    const timer = setInterval(load, EVERY);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [asked]);

  const live = isFiltered ? (found ?? []) : frame.requests;
  const rows = held ?? live;
  const known = useKnown(frame.requests);
  return (
    <section aria-labelledby="requests-title">
      <div class="heading">
        <h2 id="requests-title">Requests</h2>
        <span class="muted">
          {count(frame.running)} under way, {count(frame.remembered)} remembered
        </span>
        <button type="button" aria-pressed={held !== null} onClick={() => setHeld(held ? null : live)}>
          {held ? "Go on" : "Hold still"}
        </button>
      </div>
      <form class="filters" role="search" aria-label="Filter requests" onSubmit={(event) => event.preventDefault()}>
        <label>
          <span>Outcome</span>
          <select
            value={filter.outcome}
            onChange={(event) => setFilter({ ...filter, outcome: event.currentTarget.value })}
          >
            <option value="">all</option>
            {OUTCOMES.map((one) => (
              <option key={one} value={one}>
                {one === "ok" ? "answered" : one === "cancelled" ? "broken off" : one}
              </option>
            ))}
          </select>
        </label>
        {FIELDS.map((name) => (
          <label key={name}>
            <span>{name[0]?.toUpperCase() + name.slice(1)}</span>
            <input
              type="text"
              list={`known-${name}`}
              value={filter[name]}
              spellcheck={false}
              autocomplete="off"
              placeholder="any"
              onInput={(event) => setFilter({ ...filter, [name]: event.currentTarget.value })}
            />
            <datalist id={`known-${name}`}>
              {known[name].map((value) => (
                <option key={value} value={value} />
              ))}
            </datalist>
          </label>
        ))}
        <button type="button" disabled={!isFiltered} onClick={() => setFilter(NONE)}>
          Clear
        </button>
      </form>
      {error && (
        <p class="bad" role="alert">
          <span aria-hidden="true">✖</span> {error}
        </p>
      )}
      <div class="panel scroll tall" tabIndex={0} role="region" aria-label="Requests, newest first">
        <table class="requests" role="table">
          <thead role="rowgroup">
            <tr role="row">
              <th scope="col" role="columnheader">At</th>
              <th scope="col" role="columnheader">Outcome</th>
              <th scope="col" role="columnheader">Model</th>
              <th scope="col" role="columnheader">Target</th>
              <th scope="col" role="columnheader">Tenant</th>
              <th scope="col" role="columnheader" class="number">Asked</th>
              <th scope="col" role="columnheader" class="number">First</th>
              <th scope="col" role="columnheader" class="number">Took</th>
              <th scope="col" role="columnheader" class="number">Tokens</th>
              <th scope="col" role="columnheader" class="number">Cost</th>
              <th scope="col" role="columnheader">Reason</th>
            </tr>
          </thead>
          <tbody role="rowgroup">
            {rows.map((one) => (
              <RequestRow key={one.id + one.at} one={one} open={open} />
            ))}
          </tbody>
        </table>
        {rows.length === 0 && (
          <p class="empty">{isFiltered ? "No request is like that." : "Nobody has asked anything yet."}</p>
        )}
      </div>
    </section>
  );
}

/** The values that filters can have, as far as they have been seen; so many of each at most. */
const KNOWN = 50;

function useKnown(requests: Summary[]): Record<(typeof FIELDS)[number], string[]> {
  const seen = useRef({
    target: new Set<string>(),
    tenant: new Set<string>(),
    model: new Set<string>(),
    reason: new Set<string>(),
  });
  for (const one of requests)
    for (const name of FIELDS) {
      const value = one[name];
      if (value && seen.current[name].size < KNOWN) seen.current[name].add(value);
    }
  const list = (name: (typeof FIELDS)[number]): string[] => [...seen.current[name]].sort();
  return { target: list("target"), tenant: list("tenant"), model: list("model"), reason: list("reason") };
}

function RequestRow({ one, open }: { one: Summary; open: (id: string) => void }) {
  const outcome = outcomeOf(one);
  const tokens = (one.usage?.input ?? 0) + (one.usage?.output ?? 0);
  return (
    <tr role="row" onClick={() => open(one.id)}>
      <th scope="row" role="rowheader">
        <button
          type="button"
          class="link"
          aria-label={`Request ${one.id} at ${clock(one.at)}, ${outcome.word}`}
          onClick={(event) => {
            event.stopPropagation();
            open(one.id);
          }}
        >
          {clock(one.at)}
        </button>
      </th>
      <td role="cell" class="outcome">
        <span class={`state ${outcome.kind}`}>
          <span aria-hidden="true">{outcome.icon}</span> {outcome.word}
        </span>
      </td>
      <td role="cell" class="model name">
        <bdi title={one.model}>{one.model || "–"}</bdi>
      </td>
      <td role="cell" class="target name">
        <bdi title={one.target ?? ""}>{one.target ?? "–"}</bdi>
      </td>
      <td role="cell" class="tenant name">
        <bdi title={one.tenant ?? ""}>{one.tenant ?? "–"}</bdi>
      </td>
      <td role="cell" class="asked number">{one.asked}</td>
      <td role="cell" class="first number">{millis(one.first_content_ms)}</td>
      <td role="cell" class="took number">{millis(one.ms)}</td>
      <td role="cell" class="tokens number">{tokens > 0 ? count(tokens) : "–"}</td>
      <td role="cell" class="cost number">{one.micro_dollars > 0 ? money(one.micro_dollars) : "–"}</td>
      <td role="cell" class="reason">{one.reason ? words(one.reason) : ""}</td>
    </tr>
  );
}
