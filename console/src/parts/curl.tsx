/** Shows a call as a curl command, and copies it. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { curl, KEY_VARIABLE, type Call } from "../api/call.ts";
import { key } from "../state/session.ts";

const shown = signal<Call | undefined>(undefined);

interface CurlButtonProps {
  /** Made when it is asked for, from what the form holds then. */
  readonly call: () => Call | undefined;
  readonly label?: string;
}

export function CurlButton({ call, label = "curl" }: CurlButtonProps): JSX.Element {
  const show = () => {
    shown.value = call();
  };
  return (
    <button type="button" class="plain small" title="Show this request as a curl command" onClick={show}>
      {label}
    </button>
  );
}

async function copied(text: HTMLElement): Promise<boolean> {
  try {
    // There is none on a page without TLS, but on loopback.
    await navigator.clipboard.writeText(text.textContent ?? "");
    return true;
  } catch {
    getSelection()?.selectAllChildren(text);
    return document.execCommand("copy");
  }
}

/** The one dialog that all buttons share. */
export function CurlDialog(): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const text = useRef<HTMLPreElement>(null);
  const [isCopied, setCopied] = useState(false);
  const call = shown.value;
  useEffect(() => {
    if (call !== undefined) {
      setCopied(false);
      dialog.current?.showModal();
    }
  }, [call]);
  const copy = async () => setCopied(text.current !== null && (await copied(text.current)));
  return (
    <dialog ref={dialog} aria-labelledby="curl-title" onClose={() => (shown.value = undefined)}>
      <header>
        <h2 id="curl-title">As a command</h2>
        <form method="dialog">
          <button class="plain">Close</button>
        </form>
      </header>
      <pre ref={text} class="command" tabIndex={0}>
        {call === undefined ? "" : curl(call, document.baseURI, key.value !== "")}
      </pre>
      {key.value !== "" && (
        <p class="hint">
          The key is not in the command: set <code>{KEY_VARIABLE}</code> to it.
        </p>
      )}
      <div class="buttons">
        <button type="button" class="primary" onClick={copy}>
          Copy
        </button>
        <span role="status">{isCopied ? "Copied" : ""}</span>
      </div>
    </dialog>
  );
}
