/** A list whose entries are moved by drag, by arrow keys on their handles, and by buttons. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { texts } from "../i18n/texts.ts";

interface SortableProps {
  readonly label: string;
  readonly names: readonly string[];
  readonly face: (name: string) => ComponentChildren;
  readonly change: (names: readonly string[]) => void;
}

/** The list with the entry at `from` moved to `to`. */
export function moved<T>(list: readonly T[], from: number, to: number): readonly T[] {
  const rest = list.filter((_, index) => index !== from);
  const at = Math.max(0, Math.min(to, rest.length));
  return [...rest.slice(0, at), ...list.slice(from, from + 1), ...rest.slice(at)];
}

export function Sortable({ label, names, face, change }: SortableProps): JSX.Element {
  const t = texts.value.sortable;
  const list = useRef<HTMLOListElement>(null);
  const [dragged, setDragged] = useState<string | undefined>(undefined);
  const [told, setTold] = useState("");
  const focused = useRef<string>(undefined);
  const move = (name: string, to: number) => {
    const next = moved(names, names.indexOf(name), to);
    change(next);
    setTold(t.moved(name, next.indexOf(name) + 1, next.length));
  };
  // An entry that has moved keeps the focus.
  useEffect(() => {
    if (focused.current !== undefined) {
      list.current?.children[names.indexOf(focused.current)]?.querySelector<HTMLElement>(".handle")?.focus();
      focused.current = undefined;
    }
  }, [names]);
  const drag = (event: PointerEvent) => {
    if (dragged === undefined || list.current === null) {
      return;
    }
    const middles = [...list.current.children].map((row) => row.getBoundingClientRect()).map(({ top, height }) => top + height / 2);
    const from = names.indexOf(dragged);
    const above = middles.filter((middle, index) => index !== from && middle < event.clientY).length;
    if (above !== from) {
      move(dragged, above);
    }
  };
  const press = (event: KeyboardEvent, name: string) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      focused.current = name;
      move(name, Math.max(0, names.indexOf(name) + step));
    }
  };
  return (
    <>
      <ol ref={list} class="sortable" aria-label={label} onPointerMove={drag} onPointerUp={() => setDragged(undefined)} onPointerCancel={() => setDragged(undefined)}>
        {names.map((name, index) => (
          <li key={name} class={name === dragged ? "dragged" : undefined}>
            <button
              type="button"
              class="plain small handle"
              aria-label={t.handle(name, index + 1, names.length)}
              title={t.hint}
              onPointerDown={(event) => {
                event.currentTarget.releasePointerCapture(event.pointerId);
                list.current?.setPointerCapture(event.pointerId);
                setDragged(name);
              }}
              onKeyDown={(event) => press(event, name)}
            >
              ⠿
            </button>
            <span class="face">{face(name)}</span>
            <button type="button" class="plain small" aria-label={t.up(name)} disabled={index === 0} onClick={() => move(name, index - 1)}>
              ↑
            </button>
            <button type="button" class="plain small" aria-label={t.down(name)} disabled={index + 1 === names.length} onClick={() => move(name, index + 1)}>
              ↓
            </button>
            <button type="button" class="plain small" aria-label={t.remove(name)} onClick={() => change(names.filter((other) => other !== name))}>
              ✕
            </button>
          </li>
        ))}
      </ol>
      <span class="unseen" role="status">
        {told}
      </span>
    </>
  );
}
