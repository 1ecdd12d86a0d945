/** A client of cuckood: which users may still see which campaign, and which codes may still be used. */

export { connect, type Settings } from "./connection.js";
export * from "./generated/index.js";
export { ProblemError } from "./problem.js";
export { type Pieces, Upload } from "./upload.js";
