/** The client: all operations, and iterators over events and redemptions. */

import { Connection, type Limits, type Settings, WAIT_MS_MAX } from "./connection.js";
import { Cuckood, type EventLine, type ListRedemptionsData, type Redemption } from "./generated/index.js";
import { pause } from "./limit.js";

const WAIT_SECONDS = 20;
/** The time limit of a request that waits for events. */
const FOLLOW_MS = 60_000;
const PAGE = 1_000;

/** All operations of a service. A rejected one throws a `ProblemError`. */
export class Client extends Cuckood {
  readonly #connection: Connection;

  constructor(connection: Connection) {
    super({ client: connection.client });
    this.#connection = connection;
  }

  /** The same client with another deadline, for single calls. */
  within(deadlineMs: number, limits?: Omit<Limits, "deadlineMs">): Client {
    return new Client(this.#connection.within({ deadlineMs, ...limits }));
  }

  /** The position of the log that reads must reflect. Another process can send it as a minimum. */
  get position(): number | undefined {
    return this.#connection.position.value;
  }

  /** The events of the service. */
  get events(): Events {
    return new Events(this.within(Infinity, { attempts: Infinity, attemptMs: FOLLOW_MS }));
  }

  /** The redemptions of coupons. */
  get redemptions(): Redemptions {
    const { limits, writeDeadlineMs } = this.#connection;
    return new Redemptions(this.within(writeDeadlineMs, { attempts: limits?.attempts ?? Infinity }));
  }
}

/** All operations of the service at an address. */
export function connect(settings: Settings): Client {
  return new Client(new Connection(settings));
}

/** The events of the service. */
export class Events {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Iterates over all events in order, and waits for new ones without end.
   *
   * A restart or a lost connection only delays it. Store `seq` of the last event processed to continue there. Throws
   * `events-gone` if the event after that one is no longer stored.
   *
   * @param after The number of the last event known. By default the oldest event stored comes first.
   * @param signal Ends a wait.
   */
  async *follow(after?: number, signal?: AbortSignal): AsyncGenerator<EventLine, never, void> {
    for (;;) {
      const query = { after, limit: PAGE, wait: WAIT_SECONDS };
      const askedAt = performance.now();
      const page: unknown = await this.#client.listEvents({ query, signal, parseAs: "text" });
      const lines = (page as string).split("\n").filter(Boolean);
      if (lines.length === 0 && performance.now() - askedAt < WAIT_MS_MAX) {
        // Whatever answers does not wait.
        await pause(WAIT_MS_MAX, signal);
      }
      for (const line of lines) {
        const event = JSON.parse(line) as EventLine;
        yield event;
        after = event.seq;
      }
    }
  }
}

/** What to export. */
export type Export = Pick<ListRedemptionsData, "path" | "query"> & { signal?: AbortSignal };

/** The redemptions of coupons. */
export class Redemptions {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Iterates over the redemptions of a coupon, in the order of their last change.
   *
   * A redemption that changes during the export appears again at the end, in its new state. Each page has the deadline of a
   * write, and is requested again while that lasts. A signal ends it.
   */
  async *export({ path, query, signal }: Export): AsyncGenerator<Redemption, void, void> {
    let cursor = query?.cursor;
    do {
      const page = await this.#client.listRedemptions({ path, signal, query: { limit: PAGE, ...query, cursor } });
      yield* page.redemptions;
      cursor = page.next_cursor;
    } while (cursor !== undefined);
  }
}
