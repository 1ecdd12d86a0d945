/** What a `datetime-local` control holds, in the reader's time zone, and the API's times in UTC. */

export function toUtc(local: string): string | undefined {
  return local === "" ? undefined : new Date(local).toISOString();
}

export function toLocal(time: string | undefined): string {
  if (time === undefined) {
    return "";
  }
  const at = new Date(time);
  const shifted = new Date(at.getTime() - at.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 16);
}
