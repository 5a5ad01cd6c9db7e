// What the gateway answers: the part of it that the page shows.

export interface Quantiles {
  p50: number | null;
  p95: number | null;
}

export interface Sums {
  ok: number;
  recovered: number;
  failed: number;
  cancelled: number;
  steps: Record<string, number>;
  first_content_ms: Quantiles;
  added_ms: Quantiles;
  input_tokens: number;
  output_tokens: number;
  micro_dollars: number;
}

export interface Timeline {
  span: string;
  step_s: number;
  intervals: (Sums & { at: string })[];
}

export interface Usage {
  input: number | null;
  output: number | null;
  cache_read: number | null;
}

export interface Summary {
  id: string;
  at: string;
  tenant?: string;
  key?: string;
  agent?: string;
  session?: string;
  task?: string;
  dialect: string;
  model: string;
  route?: string;
  stream: boolean;
  outcome: string;
  recovered: boolean;
  reason?: string;
  evidence?: string;
  error?: string;
  target?: string;
  asked: number;
  ms: number;
  first_content_ms?: number;
  usage?: Usage;
  micro_dollars: number;
  left_out?: string;
}

export interface Attempt {
  number: number;
  target: string | null;
  at_ms: number;
  first_content_ms: number | null;
  ms: number | null;
  outcome: string;
  reason: string | null;
  evidence: string | null;
  usage: Usage | null;
  bytes: number;
}

export interface Step {
  at_ms: number;
  step: string;
  target: string | null;
  reason: string | null;
  wait_ms: number | null;
  detail: string | null;
}

export interface Story extends Summary {
  attempts: Attempt[];
  steps: Step[];
  steps_dropped: number;
}

export interface TargetHealth {
  target: string;
  status: string;
  errors: number;
  consecutive: number;
  last_error: { reason: string; message: string; ago_s: number } | null;
  last_success_ago_s: number | null;
  cooling: { reason: string; for_s: number } | null;
  probing: boolean;
  out: boolean;
  in_flight: number;
}

export interface Breaker {
  target: string;
  state: string;
  for_s: number | null;
  consecutive: number;
  calls: number;
  failures: number;
}

export interface Traffic {
  target: string;
  attempts: number;
  answered: number;
  failed: number;
  dropped: number;
  share: number;
  first_content_ms: Quantiles;
}

export interface Attention {
  severity: "bad" | "warn" | "note";
  kind: string;
  text: string;
  target: string | null;
}

export interface Route {
  name: string;
  chain: (string | string[])[];
}

export interface Status {
  routes: Route[];
  targets: TargetHealth[];
  /** Each provider of a chain with each of its keys. */
  available: { target: string; available: boolean }[];
  breakers: Breaker[];
  traffic: Traffic[];
  attention: Attention[];
  health: { provider: string; status: string; calls: number; failures: number }[];
  escalation: { held: number; total: number };
  guard: { tasks: { task: string; tenant: string | null; calls: number; stopped: string | null }[] };
  compaction: {
    learned: { model: string; window: number }[];
    refused: { provider: string; model: string; parameter: string }[];
  };
  reload: { times: number; failed: number; last_ago_s: number | null; last_error: string | null };
  keeps: { letters: boolean; sessions: boolean; runs: boolean };
  fleet: { shared: boolean };
}

export interface Frame {
  version: string;
  at_ms: number;
  last_5_min: Sums;
  running: number;
  remembered: number;
  requests: Summary[];
  status: Status;
}

export interface Held {
  id: string;
  left_s: number;
  tenant: string | null;
  agent: string | null;
  task: string | null;
  model: string;
  reason: string;
  attempts: number;
  targets: { target: string; reason: string; tried: boolean; back_in_s: number | null }[];
  decisions: string[];
}

export interface Spent {
  tokens: number;
  micro_dollars: number;
}

export interface Account {
  tenant?: string;
  key?: string;
  summaries?: string;
  hour: Spent;
  day: Spent;
  month: Spent;
}

export interface Letter {
  key: string;
  state: string;
  destination: string;
  tenant: string | null;
  kept_ms: number;
  attempts: number;
  error: string;
}

export interface Thread {
  thread: string;
  session: number;
  turns: number;
  messages: number;
  last: string | null;
}

export interface Run {
  id: string;
  agent?: string;
  task?: string;
  state: string;
  started_ms: number;
  ended_ms?: number;
  reason?: string;
}

export interface Fact {
  kind: string;
  key: string;
  /** Until it ends; nothing where it is over. */
  for_s: number | null;
  by: { node: string; for_s: number; holds: boolean }[];
}

export interface Fleet {
  shared: boolean;
  node: string;
  store: {
    name: string;
    away: boolean;
    away_s: number | null;
    error: string | null;
    outages: number;
    commands: number;
    waiting: number;
  };
  nodes: {
    name: string;
    this: boolean;
    version: string;
    configuration: string;
    address: string;
    up_s: number;
    heard_ago_s: number;
  }[];
  differ_in_configuration: boolean;
  differ_in_version: boolean;
  facts: Fact[];
  leases: {
    spend: { account: string; is_cost: boolean; granted: Spent; held: Spent }[];
    rates: { target: string; ppm: number }[];
  };
}
