/** Pages of a list that is too long for one. */

import type { JSX } from "preact";
import { texts } from "../i18n/texts.ts";

interface PagerProps {
  readonly page: number;
  /** If it is known. */
  readonly pages?: number;
  readonly hasNext: boolean;
  readonly change: (page: number) => void;
}

export function Pager({ page, pages, hasNext, change }: PagerProps): JSX.Element | null {
  const t = texts.value.pager;
  if (page === 0 && !hasNext) {
    return null;
  }
  return (
    <nav class="pages" aria-label={t.label}>
      <button type="button" class="plain" disabled={page === 0} onClick={() => change(page - 1)}>
        ← {t.previous}
      </button>
      <span>{pages === undefined ? t.page(page + 1) : t.pageOf(page + 1, pages)}</span>
      <button type="button" class="plain" disabled={!hasNext} onClick={() => change(page + 1)}>
        {t.next} →
      </button>
    </nav>
  );
}
