// How it went over time: six charts of one timeline, and the same as a table.

import uPlot from "uplot";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { clock, count, millis, money, words } from "./text";
import type { Sums, Timeline } from "./types";

const SPANS = [
  { name: "15m", title: "15 min", every: 5_000 },
  { name: "6h", title: "6 hours", every: 60_000 },
  { name: "24h", title: "24 hours", every: 300_000 },
] as const;

type SpanName = (typeof SPANS)[number]["name"];

/** Seconds of each span. */
const LENGTH: Record<SpanName, number> = { "15m": 900, "6h": 21_600, "24h": 86_400 };

/** The fewest intervals that are shown. */
const LEAST = 18;

/** The most kinds of recovery that have a line. */
const KINDS = 5;

interface Line {
  name: string;
  colour: string;
  values: (number | null)[];
}

interface Chart {
  title: string;
  /** One sentence, for whoever does not see it. */
  summary: string;
  lines: Line[];
  stacked?: boolean;
  format: (value: number) => string;
}

export function Charts({ lately }: { lately: Sums }) {
  const [span, setSpan] = useState<SpanName>("15m");
  const [timeline, setTimeline] = useState<Timeline | null>(null);
  const [asTable, setAsTable] = useState(false);
  const [at, setAt] = useState<number | null>(null);

  useEffect(() => {
    let gone = false;
    const every = SPANS.find((one) => one.name === span)?.every ?? 60_000;
    const load = (): void => {
      if (document.hidden) return;
      get<Timeline>(`/admin/timeline?span=${span}`)
        .then((one) => {
          if (!gone) setTimeline(one);
        })
        // The feed says that the gateway is gone.
        .catch(() => undefined);
    };
    load();
    const timer = setInterval(load, every);
    document.addEventListener("visibilitychange", load);
    return () => {
      gone = true;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", load);
    };
  }, [span]);

  const grid = useMemo(() => (timeline ? gridOf(timeline) : null), [timeline]);
  const charts = useMemo(() => (grid ? chartsOf(grid.sums, timeline?.step_s ?? 1) : []), [grid]);
  return (
    <section aria-labelledby="time-title">
      <div class="heading">
        <h2 id="time-title">Over time</h2>
        <div class="segments" role="group" aria-label="Span">
          {SPANS.map((one) => (
            <button
              key={one.name}
              type="button"
              aria-pressed={span === one.name}
              onClick={() => setSpan(one.name)}
            >
              {one.title}
            </button>
          ))}
        </div>
        <button type="button" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
          Table
        </button>
      </div>
      {grid === null ? (
        <p class="panel empty">Loading …</p>
      ) : asTable ? (
        <TimeTable times={grid.times} sums={grid.sums} />
      ) : (
        <div class="charts">
          {charts.map((chart) => (
            <Plot
              key={chart.title}
              chart={chart}
              times={grid.times}
              latest={grid.sums.findLastIndex((one) => one !== null)}
              at={at}
              setAt={setAt}
            />
          ))}
        </div>
      )}
      <p class="hidden">
        In the last five minutes {lately.ok + lately.recovered} requests were answered and {lately.failed}{" "}
        were lost.
      </p>
    </section>
  );
}

/** Every interval of the span, those in which nothing ended among them. */
function gridOf(timeline: Timeline): { times: number[]; sums: (Sums | null)[] } {
  const step = timeline.step_s;
  const known = new Map<number, Sums>();
  let base = Math.floor(Date.now() / 1_000);
  for (const interval of timeline.intervals) {
    base = Math.round(Date.parse(interval.at) / 1_000);
    known.set(base, interval);
  }
  const now = Date.now() / 1_000;
  const newest = base + Math.max(0, Math.floor((now - base) / step)) * step;
  const length = LENGTH[timeline.span as SpanName] ?? 900;
  // A gateway that has just started has little to show: that is not made small by what there was not.
  const first = timeline.intervals[0] ? Math.round(Date.parse(timeline.intervals[0].at) / 1_000) : newest;
  const begin = Math.max(newest - length + step, Math.min(first, newest - LEAST * step));
  const times: number[] = [];
  for (let time = newest - Math.floor((newest - begin) / step) * step; time <= newest; time += step)
    times.push(time);
  // The gateway rounds the starts to a second.
  const find = (time: number): Sums | null => known.get(time) ?? known.get(time - 1) ?? known.get(time + 1) ?? null;
  return { times, sums: times.map(find) };
}

function chartsOf(sums: (Sums | null)[], step: number): Chart[] {
  const line = (name: string, colour: string, of: (sums: Sums) => number | null, none: number | null): Line => ({
    name,
    colour,
    values: sums.map((one) => (one ? of(one) : none)),
  });
  const total = (of: (sums: Sums) => number): number =>
    sums.reduce((all, one) => all + (one ? of(one) : 0), 0);
  const kinds = new Map<string, number>();
  for (const one of sums)
    for (const [kind, times] of Object.entries(one?.steps ?? {}))
      kinds.set(kind, (kinds.get(kind) ?? 0) + times);
  const top = [...kinds].sort((a, b) => b[1] - a[1]).slice(0, KINDS);
  const colours = ["--accent", "--warn", "--good", "--note", "--bad"];
  const worst = (of: (sums: Sums) => number | null): number =>
    sums.reduce((most, one) => Math.max(most, (one && of(one)) ?? 0), 0);
  const per = (value: number): string => count(value);
  return [
    {
      title: "Calls",
      summary: `${count(total((s) => s.ok))} answered at once, ${count(total((s) => s.recovered))} recovered, ${count(total((s) => s.failed))} lost, ${count(total((s) => s.cancelled))} broken off; by ${step} s.`,
      lines: [
        line("at once", "--good", (s) => s.ok, 0),
        line("recovered", "--accent", (s) => s.recovered, 0),
        line("lost", "--bad", (s) => s.failed, 0),
        line("broken off", "--muted", (s) => s.cancelled, 0),
      ],
      stacked: true,
      format: per,
    },
    {
      title: "Recovery steps",
      summary:
        top.length === 0
          ? "Nothing had to be done."
          : `${top.map(([kind, times]) => `${kind} ${count(times)} times`).join(", ")}.`,
      lines: top.map(([kind], at) =>
        line(words(kind), colours[at] ?? "--muted", (s) => s.steps[kind] ?? 0, 0),
      ),
      format: per,
    },
    {
      title: "First content",
      summary: `95 % within ${millis(worst((s) => s.first_content_ms.p95))} in the slowest interval.`,
      lines: [
        line("half", "--accent", (s) => s.first_content_ms.p50, null),
        line("95 %", "--warn", (s) => s.first_content_ms.p95, null),
      ],
      format: (value) => millis(value),
    },
    {
      title: "Waiting added",
      summary: `By retries, rests and other targets: 95 % within ${millis(worst((s) => s.added_ms.p95))} in the slowest interval.`,
      lines: [
        line("half", "--accent", (s) => s.added_ms.p50, null),
        line("95 %", "--warn", (s) => s.added_ms.p95, null),
      ],
      format: (value) => millis(value),
    },
    {
      title: "Tokens",
      summary: `${count(total((s) => s.input_tokens))} in, ${count(total((s) => s.output_tokens))} out.`,
      lines: [
        line("in", "--accent", (s) => s.input_tokens, 0),
        line("out", "--note", (s) => s.output_tokens, 0),
      ],
      format: per,
    },
    {
      title: "Money",
      summary: `${money(total((s) => s.micro_dollars))} altogether.`,
      lines: [line("spent", "--note", (s) => s.micro_dollars, 0)],
      format: money,
    },
  ];
}

/** Sums from the last line to the first, so that each is drawn before the smaller ones. */
function stack(lines: Line[]): (number | null)[][] {
  const sums: (number | null)[][] = [];
  let below: (number | null)[] = [];
  for (const line of lines) {
    below = line.values.map((value, at) => (value ?? 0) + (below[at] ?? 0));
    sums.push(below);
  }
  return sums;
}

function Plot({
  chart,
  times,
  latest,
  at,
  setAt,
}: {
  chart: Chart;
  times: number[];
  /** The newest interval in which something ended. */
  latest: number;
  at: number | null;
  setAt: (at: number | null) => void;
}) {
  const canvas = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const names = chart.lines.map((line) => line.name).join();
  const data = useMemo((): uPlot.AlignedData => {
    const lines = chart.stacked ? stack(chart.lines).reverse() : chart.lines.map((line) => line.values);
    return [times, ...lines];
  }, [chart, times]);

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const make = (): void => {
      plot.current?.destroy();
      plot.current = new uPlot(options(chart, element, setAt), data, element);
    };
    make();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", make);
    const size = new ResizeObserver(() => {
      plot.current?.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    size.observe(element);
    return () => {
      scheme.removeEventListener("change", make);
      size.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names]);
  useEffect(() => plot.current?.setData(data), [data]);

  const shown = at !== null && at < times.length ? at : latest;
  return (
    <figure class="panel chart">
      <figcaption>
        <h3>{chart.title}</h3>
        <span class="muted">{at === null ? "latest" : clock((times[shown] ?? 0) * 1_000)}</span>
      </figcaption>
      <div ref={canvas} role="img" aria-label={`${chart.title}. ${chart.summary}`} />
      <ul class="legend">
        {chart.lines.map((line) => {
          const value = line.values[shown];
          return (
            <li key={line.name}>
              <span class={`swatch c${line.colour}`} aria-hidden="true" />
              {line.name} <b>{value === null || value === undefined ? "–" : chart.format(value)}</b>
            </li>
          );
        })}
        {chart.lines.length === 0 && <li>{chart.summary}</li>}
      </ul>
    </figure>
  );
}

const HEIGHT = 130;

/** Between the times that are written, in seconds. */
const STEPS = [60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 14_400];

function options(chart: Chart, element: HTMLElement, setAt: (at: number | null) => void): uPlot.Options {
  const css = getComputedStyle(document.documentElement);
  const colour = (name: string): string => css.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: `11px ${css.getPropertyValue("--sans")}`,
  };
  const bars = uPlot.paths.bars?.({ size: [0.9, 24], align: 1 });
  const series = chart.lines.map(
    (line): uPlot.Series => ({
      label: line.name,
      stroke: colour(line.colour),
      width: chart.stacked ? 0 : 1.5,
      // A single value between gaps would not be seen.
      points: chart.stacked ? { show: false } : { size: 4, fill: colour(line.colour), filter: alone },
      spanGaps: false,
      ...(chart.stacked ? { fill: colour(line.colour), ...(bars ? { paths: bars } : {}) } : {}),
    }),
  );
  return {
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { sync: { key: "time" }, points: { show: !chart.stacked }, drag: { x: false, y: false }, y: false },
    scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [
      { ...axis, size: 22, space: 56, incrs: STEPS, values: (_, times) => times.map(minute) },
      { ...axis, size: 56, space: 34, values: (_, values) => values.map((value) => chart.format(value)) },
    ],
    series: [{}, ...(chart.stacked ? series.reverse() : series)],
    hooks: { setCursor: [(self) => setAt(self.cursor.idx ?? null)] },
  };
}

/** The positions of values without neighbours. */
function alone(self: uPlot, line: number): number[] {
  const values = self.data[line] ?? [];
  const is = (at: number): boolean => values[at] !== null && values[at] !== undefined;
  return [...values.keys()].filter((at) => is(at) && !is(at - 1) && !is(at + 1));
}

function minute(time: number): string {
  return new Date(time * 1_000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** The same in words and numbers, the newest first. */
function TimeTable({ times, sums }: { times: number[]; sums: (Sums | null)[] }) {
  const rows = times
    .map((time, at) => ({ time, sums: sums[at] }))
    .filter((row) => row.sums)
    .reverse();
  return (
    <div class="panel scroll" tabIndex={0} role="region" aria-label="Intervals">
      <table>
        <thead>
          <tr>
            {["From", "At once", "Recovered", "Lost", "Broken off", "First content", "95 %", "Added", "95 %", "Tokens in", "out", "Money"].map(
              (name, at) => (
                <th scope="col" key={at} class={at > 0 ? "number" : ""}>
                  {name}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ time, sums: one }) =>
            one ? (
              <tr key={time}>
                <th scope="row">{clock(time * 1_000)}</th>
                {[
                  count(one.ok),
                  count(one.recovered),
                  count(one.failed),
                  count(one.cancelled),
                  millis(one.first_content_ms.p50),
                  millis(one.first_content_ms.p95),
                  millis(one.added_ms.p50),
                  millis(one.added_ms.p95),
                  count(one.input_tokens),
                  count(one.output_tokens),
                  money(one.micro_dollars),
                ].map((value, at) => (
                  <td key={at} class="number">
                    {value}
                  </td>
                ))}
              </tr>
            ) : null,
          )}
        </tbody>
      </table>
      {rows.length === 0 && <p class="empty">Nothing has ended in this time.</p>}
    </div>
  );
}
