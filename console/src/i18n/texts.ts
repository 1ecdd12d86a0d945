/** The page's texts in the reader's language. Components read `texts.value`, and are drawn again when the language changes. */

import { computed } from "@preact/signals";
import { en } from "./en.ts";
import { language, type Language } from "./language.ts";
import { zh } from "./zh.ts";

type Translated<T> = {
  readonly [K in keyof T]: T[K] extends string ? string : T[K] extends (...values: infer V) => string ? (...values: V) => string : Translated<T[K]>;
};

/** What every language has: the texts of English. */
export type Catalog = Translated<typeof en>;

export const CATALOGS: Readonly<Record<Language, Catalog>> = { en, "zh-CN": zh };

export const texts = computed(() => CATALOGS[language.value]);

/** The text of a key that may come from a newer service; the key itself if there is none. */
export function named(of: Readonly<Record<string, string>>, key: string): string {
  return of[key] ?? key;
}
