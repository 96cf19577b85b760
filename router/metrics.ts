// Counters and histograms in Prometheus' text format. Labels are bounded: models and replicas of the table, statuses,
// and fixed words; what a client made up never becomes one.

/** Seconds: from a cached answer to a long generation. */
const BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600];
/** Fleets name models, so this bounds mistakes (a name per user, say), not a size. */
const MAX_MODELS = 500;

interface Histogram {
  buckets: number[];
  sum: number;
  count: number;
}

/** Values that are read when somebody asks. */
export interface Gauges {
  tableVersion: number | null;
  controlPlaneConnected: boolean | null;
  endpoints: { replica: string; node: string; outstanding: number; ejected: boolean }[];
  queued: Record<string, number>;
}

export class Metrics {
  private readonly counters = new Map<string, number>();
  private readonly histograms = new Map<string, Histogram>();
  private readonly models = new Set<string>();

  /** A request has ended; `model` null: none that is known. */
  request(model: string | null, code: number, seconds: number): void {
    const name = this.modelLabel(model);
    this.add(`llmgw_router_requests_total{model=${name},code="${code}"}`);
    this.observe('llmgw_router_request_duration_seconds', name, seconds);
  }

  firstByte(model: string, seconds: number): void {
    this.observe('llmgw_router_time_to_first_byte_seconds', this.modelLabel(model), seconds);
  }

  retry(reason: string): void {
    this.add(`llmgw_router_retries_total{reason="${reason}"}`);
  }

  ejection(reason: string): void {
    this.add(`llmgw_router_ejections_total{reason="${reason}"}`);
  }

  render(gauges: Gauges): string {
    const lines: string[] = [];
    const family = (name: string, type: string, help: string, samples: string[]) => {
      if (samples.length > 0) lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...samples);
    };
    for (const [name, help] of COUNTERS) {
      const samples = [...this.counters].filter(([key]) => key.startsWith(`${name}{`));
      family(
        name,
        'counter',
        help,
        samples.map(([key, value]) => `${key} ${value}`),
      );
    }
    for (const [name, help] of HISTOGRAMS) {
      const series = [...this.histograms].filter(([key]) => key.startsWith(`${name} `));
      family(
        name,
        'histogram',
        help,
        series.flatMap(([key, value]) => histogramLines(name, key, value)),
      );
    }
    family('llmgw_router_outstanding', 'gauge', 'Requests at a replica now.', sumByReplica(gauges.endpoints));
    family(
      'llmgw_router_endpoint_ejected',
      'gauge',
      'Whether the router keeps away from a replica after faults.',
      gauges.endpoints.map(
        e =>
          `llmgw_router_endpoint_ejected{replica=${quote(e.replica)},node=${quote(e.node)}} ${Number(e.ejected)}`,
      ),
    );
    family(
      'llmgw_router_queued',
      'gauge',
      'Requests that wait for a replica.',
      Object.entries(gauges.queued).map(([m, n]) => `llmgw_router_queued{model=${quote(m)}} ${n}`),
    );
    if (gauges.tableVersion !== null)
      family('llmgw_router_table_version', 'gauge', 'Version of the route table in use.', [
        `llmgw_router_table_version ${gauges.tableVersion}`,
      ]);
    if (gauges.controlPlaneConnected !== null)
      family('llmgw_router_control_plane_connected', 'gauge', 'Whether the route table is being watched.', [
        `llmgw_router_control_plane_connected ${Number(gauges.controlPlaneConnected)}`,
      ]);
    return `${lines.join('\n')}\n`;
  }

  private add(key: string): void {
    this.counters.set(key, (this.counters.get(key) ?? 0) + 1);
  }

  private observe(name: string, model: string, seconds: number): void {
    const key = `${name} ${model}`;
    let histogram = this.histograms.get(key);
    if (histogram === undefined) {
      histogram = { buckets: BUCKETS.map(() => 0), sum: 0, count: 0 };
      this.histograms.set(key, histogram);
    }
    const at = BUCKETS.findIndex(limit => seconds <= limit);
    if (at >= 0) histogram.buckets[at]!++;
    histogram.sum += seconds;
    histogram.count++;
  }

  private modelLabel(model: string | null): string {
    if (model === null) return '""';
    if (!this.models.has(model)) {
      if (this.models.size >= MAX_MODELS) return '"other"';
      this.models.add(model);
    }
    return quote(model);
  }
}

const COUNTERS: [string, string][] = [
  ['llmgw_router_requests_total', 'Requests by model and status; 499: the client left.'],
  ['llmgw_router_retries_total', 'Requests sent again, by the fault before.'],
  ['llmgw_router_ejections_total', 'Replicas that were left alone for a while, by fault.'],
];
const HISTOGRAMS: [string, string][] = [
  ['llmgw_router_request_duration_seconds', 'From the request to the end of the answer.'],
  ['llmgw_router_time_to_first_byte_seconds', 'From the request to the first byte of the answer.'],
];

function histogramLines(name: string, key: string, { buckets, sum, count }: Histogram): string[] {
  const model = key.slice(name.length + 1);
  let below = 0;
  const lines = BUCKETS.map((limit, i) => {
    below += buckets[i]!;
    return `${name}_bucket{model=${model},le="${limit}"} ${below}`;
  });
  lines.push(`${name}_bucket{model=${model},le="+Inf"} ${count}`);
  lines.push(`${name}_sum{model=${model}} ${sum}`, `${name}_count{model=${model}} ${count}`);
  return lines;
}

/** Two generations of a replica may be in the table at once; they are one series. */
function sumByReplica(endpoints: Gauges['endpoints']): string[] {
  const sums = new Map<string, number>();
  for (const e of endpoints) {
    const labels = `{replica=${quote(e.replica)},node=${quote(e.node)}}`;
    sums.set(labels, (sums.get(labels) ?? 0) + e.outstanding);
  }
  return [...sums].map(([labels, n]) => `llmgw_router_outstanding${labels} ${n}`);
}

const quote = (text: string): string =>
  `"${text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`;
