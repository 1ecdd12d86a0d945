/** Answers of the API, as far as the page reads them. Optional fields may come from a newer service. */

export type Kind = "campaigns" | "coupons";

export type Row = Readonly<Record<string, unknown>>;

export interface Segment {
  readonly items: number;
  readonly capacity: number;
  readonly fingerprint_bits: number;
  readonly bucket_size: number;
}

export interface Stats {
  readonly items: number;
  readonly capacity_now: number;
  readonly load: number;
  readonly error_rate_now: number;
  readonly memory_bytes: number;
  readonly segments: readonly Segment[];
  readonly steps?: readonly Row[];
  readonly adds: number;
  readonly removes: number;
  readonly available?: number;
  readonly held?: number;
  readonly redeemed?: number;
  /** Uses of codes, if a code has several. */
  readonly uses?: { readonly held: number; readonly redeemed: number };
  readonly copies_max: number;
}

export type Labels = Readonly<Record<string, string>>;

export interface Filter {
  readonly name: string;
  readonly title?: string;
  readonly labels?: Labels;
  readonly capacity: number;
  readonly mode: "compact" | "strict";
  readonly error_rate?: number;
  readonly growth: "auto" | "fixed";
  readonly layout?: { readonly fingerprint_bits: number; readonly bucket_size: number };
  readonly normalize?: "exact" | "ascii" | "case" | "code";
  readonly forget_after?: string;
  readonly forget_steps?: number;
  readonly stock?: number;
  /** How often a code can be used: strict coupons only. */
  readonly uses?: number;
  readonly per_customer?: number;
  readonly starts_at?: string;
  readonly ends_at?: string;
  readonly created_at: string;
  readonly stats: Stats;
}

export interface Redemption {
  readonly id: string;
  readonly status: "held" | "redeemed" | "cancelled" | "expired";
  readonly reference: string;
  readonly ordinal?: number;
  readonly created_at: string;
  readonly expires_at?: string;
  readonly redeemed_at?: string;
  readonly cancelled_at?: string;
  /** False if it ended, and its code did not become available by that; else absent. */
  readonly released?: boolean;
}

/** What a lookup finds of a code: its redemption, or its uses if it has several. */
export interface CodeLookup {
  readonly status: "available" | "held" | "redeemed" | "absent";
  readonly redemption?: Redemption;
  readonly uses?: { readonly taken: number; readonly held: number };
  readonly redemptions?: readonly Redemption[];
}

export interface CustomerLookup {
  readonly taken: number;
  readonly redemptions: readonly Redemption[];
}

export interface Exclusion {
  readonly campaign: string;
  readonly at_least?: number;
  readonly for?: string;
  /** Without this campaign, it excludes all users. */
  readonly required?: boolean;
}

export interface LineUp {
  readonly name: string;
  readonly title?: string;
  readonly labels?: Labels;
  readonly campaigns: readonly string[];
  readonly unless: readonly Exclusion[];
  readonly limit: number;
}

export interface Eligibility {
  readonly eligible: readonly string[];
  readonly evaluated: number;
  readonly unknown: readonly string[];
  readonly inactive: readonly string[];
  readonly explanations?: readonly {
    readonly campaign: string;
    readonly present: boolean;
    readonly window: "before" | "inside" | "after";
    readonly excluded_by?: string;
    readonly eligible: boolean;
  }[];
}

export interface Import {
  readonly id: string;
  readonly state: "running" | "done" | "checked" | "failed" | "interrupted";
  readonly mode: "append" | "replace";
  readonly campaign?: string;
  readonly coupon?: string;
  readonly started_at: string;
  readonly lines: number;
  readonly added: number;
  readonly already_present: number;
  readonly already_redeemed: number;
  readonly rejected: number;
  readonly errors: readonly { readonly line: number; readonly code: string }[];
  readonly warnings: readonly string[];
  readonly failure?: { readonly code: string; readonly detail: string };
  readonly seconds: number;
}

export interface Key {
  readonly name: string;
  readonly scopes: readonly string[];
  readonly prefix?: string;
  readonly expires_at?: string;
}

export interface Info {
  readonly version: string;
  readonly key?: Key;
  readonly uptime_seconds: number;
  readonly durability: string;
  readonly filters: number;
  readonly redemptions: number;
  readonly idempotency_records: number;
  readonly idempotency_bytes: number;
  readonly idempotency_room_bytes: number;
  readonly last_seq: number;
  readonly snapshot?: { readonly seq: number; readonly taken_at: string };
  readonly memory: { readonly tables_bytes: number; readonly records_bytes: number; readonly limit_bytes: number };
  readonly storage: {
    readonly disk_bytes: number;
    readonly free_bytes: number;
    readonly wal_bytes_written: number;
    readonly snapshot_bytes_written: number;
  };
}

export interface ProblemDocument {
  readonly status: number;
  readonly code: string;
  readonly title: string;
  readonly detail: string;
  readonly request_id?: string;
  /** When the first hold of a held code ends. */
  readonly expires_at?: string;
  readonly errors?: readonly { readonly pointer: string; readonly detail: string }[];
}

/** What the items of a kind are called in paths and requests. */
export const NOUN = {
  campaigns: { one: "campaign", item: "user", items: "users" },
  coupons: { one: "coupon", item: "code", items: "codes" },
} as const;
