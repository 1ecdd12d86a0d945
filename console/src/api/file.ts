/** What a file's name and its first bytes tell before it is uploaded. */

export type Coding = "gzip" | "zstd";

/** The compression of `users.csv.gz`, say. */
export function codingOf(name: string): Coding | undefined {
  const last = name.toLowerCase().split(".").at(-1);
  return last === "gz" ? "gzip" : last === "zst" ? "zstd" : undefined;
}

/** The ending of a name, without that of a compression: `csv` of `Users.csv.gz`; empty if there is none. */
export function endingOf(name: string): string {
  const words = name.toLowerCase().split(".");
  const [, ...endings] = codingOf(name) === undefined ? words : words.slice(0, -1);
  return endings.at(-1) ?? "";
}

/** Why no list can be read from a file as it is: its encoding, an Excel workbook, line breaks of old Macs. */
export type Unreadable = "utf16" | "workbook" | "macintosh";

/** The beginning of a file. */
export interface Head {
  /** Without a byte-order mark. */
  readonly text: string;
  /** Whether that is all of it. */
  readonly isWhole: boolean;
  /** Whether all of it is UTF-8. What is not became U+FFFD in the text. */
  readonly isUtf8: boolean;
  readonly unreadable?: Unreadable;
}

/** Maximum number of bytes that are read. */
const HEAD_BYTES = 64 << 10;
/** The service takes a file for UTF-16 if one of its first 4,096 bytes is NUL. */
const NUL_BYTES = 4 << 10;

const UTF16_MARKS = [[0xff, 0xfe], [0xfe, 0xff]] as const;
/** A zip archive, as .xlsx, .ods and .numbers are, and the older .xls. */
const WORKBOOK_MARKS = [[0x50, 0x4b, 0x03, 0x04], [0xd0, 0xcf, 0x11, 0xe0]] as const;

const startsWith = (bytes: Uint8Array, mark: readonly number[]) => mark.every((byte, at) => bytes[at] === byte);

function unreadable(bytes: Uint8Array): Unreadable | undefined {
  if (WORKBOOK_MARKS.some((mark) => startsWith(bytes, mark))) {
    return "workbook";
  }
  if (UTF16_MARKS.some((mark) => startsWith(bytes, mark)) || bytes.subarray(0, NUL_BYTES).includes(0)) {
    return "utf16";
  }
  const [carriageReturn, lineFeed] = [0x0d, 0x0a];
  return bytes.includes(carriageReturn) && !bytes.includes(lineFeed) ? "macintosh" : undefined;
}

async function firstBytes(file: File, coding: Coding | undefined): Promise<{ bytes: Uint8Array; isWhole: boolean }> {
  if (coding === undefined) {
    return { bytes: new Uint8Array(await file.slice(0, HEAD_BYTES).arrayBuffer()), isWhole: file.size <= HEAD_BYTES };
  }
  const reader = file.stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const bytes = new Uint8Array(HEAD_BYTES);
  let length = 0;
  let part = await reader.read();
  for (; !part.done && length < HEAD_BYTES; part = await reader.read()) {
    const fitting = part.value.subarray(0, HEAD_BYTES - length);
    bytes.set(fitting, length);
    length += fitting.length;
  }
  await reader.cancel();
  return { bytes: bytes.subarray(0, length), isWhole: part.done && length < HEAD_BYTES };
}

function isUtf8(bytes: Uint8Array, isWhole: boolean): boolean {
  try {
    // The last character may be cut off.
    new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: !isWhole });
    return true;
  } catch {
    return false;
  }
}

/** Reads the beginning of a file; undefined for a compression that browsers can't read. */
export async function headOf(file: File): Promise<Head | undefined> {
  const coding = codingOf(file.name);
  if (coding === "zstd") {
    return undefined;
  }
  const { bytes, isWhole } = await firstBytes(file, coding);
  const reason = unreadable(bytes);
  const head = { text: new TextDecoder().decode(bytes, { stream: !isWhole }), isWhole, isUtf8: isUtf8(bytes, isWhole) };
  return reason === undefined ? head : { ...head, unreadable: reason };
}
