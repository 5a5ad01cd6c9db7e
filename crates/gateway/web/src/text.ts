// How numbers and texts of others are shown.

/** What is not seen, or makes a text look like another one. */
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u00ad\u180e\u200b-\u200d\u2060-\u206f\ufeff\ufff9-\ufffb\u2028\u2029\u{e0000}-\u{e007f}]/gu;

/** Names as the gateway has them, by how they are shown where that differs. */
const originals = new Map<string, string>();

/** At most so many of them: whoever makes more names is not worth it. */
const ORIGINALS = 1_000;

/** The text with its hidden characters as numbers. */
export function visible(text: string): string {
  const shown = text.replace(HIDDEN, (c) => `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`);
  if (shown !== text && originals.size < ORIGINALS) originals.set(shown, text);
  return shown;
}

/** The name that is shown so. */
export function original(shown: string): string {
  return originals.get(shown) ?? shown;
}

/** JSON of the gateway, every text in it as it is shown. */
export function parse<T>(text: string): T {
  return JSON.parse(text, (_, value: unknown) =>
    typeof value === "string" ? visible(value) : value,
  ) as T;
}

export function count(n: number): string {
  if (n >= 1e7) return `${(n / 1e6).toFixed(0)} M`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)} M`;
  if (n >= 1e5) return `${(n / 1e3).toFixed(0)} k`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(1)} k`;
  return n.toLocaleString("en-US", { maximumFractionDigits: 0 });
}

export function money(microDollars: number): string {
  const dollars = microDollars / 1e6;
  if (dollars === 0) return "$0";
  if (dollars < 0.01) return `$${dollars.toFixed(4)}`;
  if (dollars < 1_000) return `$${dollars.toFixed(2)}`;
  return `$${Math.round(dollars).toLocaleString("en-US")}`;
}

/** A time in milliseconds. */
export function millis(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1_000) return `${ms.toFixed(0)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return seconds(ms / 1_000);
}

/** A time in seconds, as somebody says it. */
export function seconds(s: number): string {
  if (s < 120) return `${Math.max(0, Math.ceil(s))} s`;
  if (s < 7_200) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${(s / 3_600).toFixed(1)} h`;
  return `${Math.round(s / 86_400)} days`;
}

export function share(of: number): string {
  const percent = of * 100;
  return `${percent >= 10 || percent === 0 ? percent.toFixed(0) : percent.toFixed(1)} %`;
}

export function clock(at: string | number): string {
  return new Date(at).toLocaleTimeString("en-GB", { hour12: false });
}

export function words(name: string): string {
  return name.replaceAll("_", " ");
}
