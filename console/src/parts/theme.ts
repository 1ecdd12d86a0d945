/** Light or dark: as the system has it, or as the reader has said. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const PLACE = "cuckood-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function stored(): Theme {
  const value = localStorage.getItem(PLACE);
  return value === "light" || value === "dark" ? value : "system";
}

export const choice = signal<Theme>(stored());
/** The theme that is on; charts are drawn anew when it changes. */
export const theme = signal<"light" | "dark">("light");

function show(): void {
  const dark = choice.value === "dark" || (choice.value === "system" && system.matches);
  document.documentElement.dataset["theme"] = choice.value;
  theme.value = dark ? "dark" : "light";
}

effect(() => {
  choice.value === "system" ? localStorage.removeItem(PLACE) : localStorage.setItem(PLACE, choice.value);
  show();
});
system.addEventListener("change", show);
