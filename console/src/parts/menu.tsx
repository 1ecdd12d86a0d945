/** A button with a list of actions under it. The list is in the browser's top layer, so that nothing cuts it off. */

import type { ComponentChildren, JSX } from "preact";
import { useId, useRef } from "preact/hooks";

/** The most that a list is wide, and how high one of a few entries is. */
const WIDTH = 280;
const HEIGHT = 220;
const GAP = 4;

interface MenuProps {
  readonly label: string;
  readonly face: ComponentChildren;
  readonly children: ComponentChildren;
}

export function Menu({ label, face, children }: MenuProps): JSX.Element {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);
  const place = () => {
    const [box, { style }] = [button.current?.getBoundingClientRect(), list.current ?? {}] as [DOMRect, HTMLElement];
    const isAbove = box.bottom + HEIGHT > innerHeight && box.top > HEIGHT;
    style.top = isAbove ? "auto" : `${box.bottom + GAP}px`;
    style.bottom = isAbove ? `${innerHeight - box.top + GAP}px` : "auto";
    style.right = `${Math.max(2 * GAP, Math.min(innerWidth - box.right, innerWidth - WIDTH - 2 * GAP))}px`;
  };
  // A choice leaves it open; an action ends it.
  const close = (event: MouseEvent) => (event.target as Element).closest("button, a") && list.current?.hidePopover();
  return (
    <>
      <button ref={button} type="button" class="plain small" aria-label={label} popovertarget={id}>
        {face}
      </button>
      <div ref={list} id={id} popover="auto" class="menu" onBeforeToggle={place} onClick={close}>
        {children}
      </div>
    </>
  );
}
