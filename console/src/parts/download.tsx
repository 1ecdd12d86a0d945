/** Files that the page saves: what the service answers, as it comes. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Refusal } from "./panel.tsx";

export function save(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // The browser has taken it by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

interface DownloadProps {
  readonly label: string;
  readonly name: string;
  readonly content: () => Promise<Blob>;
}

export function Download({ label, name, content }: DownloadProps): JSX.Element {
  const [state, setState] = useState<{ error: unknown } | "running" | undefined>(undefined);
  const run = async () => {
    setState("running");
    try {
      save(await content(), name);
      setState(undefined);
    } catch (error) {
      setState({ error });
    }
  };
  return (
    <>
      <button type="button" disabled={state === "running"} onClick={run}>
        {label}
      </button>
      {typeof state === "object" && <Refusal error={state.error} />}
    </>
  );
}
