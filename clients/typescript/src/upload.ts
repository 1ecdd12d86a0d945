/** What an import reads, a block at a time: it is never whole in memory. */

/** Strings are items, to be sent with `format: "ndjson"`; bytes are sent as they are, whatever their format. */
export type Pieces =
  | Iterable<string>
  | Iterable<Uint8Array>
  | AsyncIterable<string>
  | AsyncIterable<Uint8Array>;

const BLOCK_BYTES = 64 * 1024;

/**
 * The body of an import: a blob whose bytes come from elsewhere.
 *
 * What can be read again is sent again when a connection breaks: an array, a function that gives new pieces, and any
 * other `Blob`, such as a browser's `File` or what Node's `openAsBlob` gives. Any other iterable and a stream are read once.
 */
export class Upload extends Blob {
  /** What went wrong with the source itself. */
  failure: unknown;

  readonly #source: Pieces | (() => Pieces);

  constructor(source: Pieces | (() => Pieces)) {
    super();
    if (typeof source === "string" || source instanceof Uint8Array) {
      throw new TypeError("a text is an array of its items");
    }
    this.#source = source;
  }

  /** Whether it can be read more than once. */
  get isRepeatable(): boolean {
    return typeof this.#source === "function" || Array.isArray(this.#source);
  }

  /** Its bytes, from the start. Nothing is read before they are asked for. */
  override stream(): ReadableStream<Uint8Array<ArrayBuffer>> {
    this.failure = undefined;
    let blocks: AsyncGenerator<Uint8Array<ArrayBuffer>> | undefined;
    return new ReadableStream(
      {
        pull: async (controller) => {
          blocks ??= this.#blocks();
          const { done, value } = await blocks.next();
          if (done) {
            controller.close();
          } else {
            controller.enqueue(value);
          }
        },
        cancel: async () => {
          await blocks?.return(undefined);
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** Joins pieces, so that a short one is no packet of its own. */
  async *#blocks(): AsyncGenerator<Uint8Array<ArrayBuffer>, void, void> {
    const encoder = new TextEncoder();
    let block: Uint8Array[] = [];
    let length = 0;
    try {
      const source = this.#source;
      for await (const piece of typeof source === "function" ? source() : source) {
        const bytes = typeof piece === "string" ? encoder.encode(`${JSON.stringify(piece)}\n`) : piece;
        block.push(bytes);
        length += bytes.length;
        if (length >= BLOCK_BYTES) {
          yield joined(block, length);
          block = [];
          length = 0;
        }
      }
    } catch (error) {
      this.failure = error;
      throw error;
    }
    if (length > 0) {
      yield joined(block, length);
    }
  }
}

function joined(pieces: Uint8Array[], length: number): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
