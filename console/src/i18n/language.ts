/** The reader's language: the browser's, until another one is chosen, which is remembered. */

import { signal } from "@preact/signals";

export type Language = "en" | "zh-CN";

/** Each language in its own words. */
export const LANGUAGES: Readonly<Record<Language, string>> = { en: "English", "zh-CN": "简体中文" };

const PLACE = "cuckood-language";

/** The first of the wanted languages that there is. */
export function preferred(wanted: readonly string[]): Language {
  const first = wanted.find((tag) => /^(en|zh)\b/i.test(tag)) ?? "en";
  return first.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
}

/** Unit tests have neither a page nor a browser. */
const storage = globalThis.document === undefined ? undefined : localStorage;
const stored = storage?.getItem(PLACE);

export const language = signal<Language>(preferred(stored ? [stored] : (globalThis.navigator?.languages ?? [])));

export function speak(chosen: Language): void {
  language.value = chosen;
  storage?.setItem(PLACE, chosen);
}
