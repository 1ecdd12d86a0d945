/** A client of cuckood: which users may still see which campaign, and which codes may still be used. */

export { Client, connect, Events, type Export, Redemptions } from "./client.js";
export type { Limits, Settings } from "./connection.js";
export * from "./generated/index.js";
export { HttpError, ProblemError } from "./problem.js";
export { type Pieces, Upload } from "./upload.js";
