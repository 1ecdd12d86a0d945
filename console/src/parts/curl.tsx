/** Shows a call as a curl command, and copies it. */

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { curl, KEY_VARIABLE, type Call } from "../api/call.ts";
import { texts } from "../i18n/texts.ts";
import { key } from "../state/session.ts";

const shown = signal<Call | undefined>(undefined);

interface CurlButtonProps {
  /** Made when it is asked for, from what the form holds then. */
  readonly call: () => Call;
}

export function CurlButton({ call }: CurlButtonProps): JSX.Element {
  const show = () => {
    shown.value = call();
  };
  return (
    <button type="button" class="plain small" title={texts.value.curl.hint} onClick={show}>
      curl
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
  const t = texts.value.curl;
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
        <h2 id="curl-title">{t.title}</h2>
        <form method="dialog">
          <button class="plain">{t.close}</button>
        </form>
      </header>
      <pre ref={text} class="command" tabIndex={0}>
        {call === undefined ? "" : curl(call, document.baseURI, key !== "")}
      </pre>
      {key !== "" && (
        <p class="hint">
          {t.key} <code>{KEY_VARIABLE}</code>
        </p>
      )}
      <div class="buttons">
        <button type="button" class="primary" onClick={copy}>
          {t.copy}
        </button>
        <span role="status">{isCopied ? t.copied : ""}</span>
      </div>
    </dialog>
  );
}
