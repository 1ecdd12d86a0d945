/** The frame around every page: where one can go, how the service is, which language, who one is. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { zoneName } from "./format.ts";
import { language, LANGUAGES, speak, type Language } from "./i18n/language.ts";
import { texts } from "./i18n/texts.ts";
import { CurlDialog } from "./parts/curl.tsx";
import { QuestionDialog } from "./parts/dialog.tsx";
import { Menu } from "./parts/menu.tsx";
import { Choice, Tag } from "./parts/panel.tsx";
import { choice, type Theme } from "./parts/theme.ts";
import { Activity } from "./pages/activity.tsx";
import { FilterPage } from "./pages/filter.tsx";
import { Filters } from "./pages/filters.tsx";
import { LineUpPage, NewLineUp } from "./pages/line_up.tsx";
import { LineUps } from "./pages/line_ups.tsx";
import { NewFilter } from "./pages/new.tsx";
import { Requests } from "./pages/requests.tsx";
import { SignIn } from "./pages/sign_in.tsx";
import { System } from "./pages/system.tsx";
import { Uploads } from "./pages/uploads.tsx";
import { route, type Route } from "./route.ts";
import { titles } from "./state/filters.ts";
import { readiness } from "./state/history.ts";
import { allowed, info, isKnown, key, refusal, signOut } from "./state/session.ts";

function titleOf(now: Route): string {
  const t = texts.value;
  switch (now.page) {
    case "filter":
      return titles.value[`${now.kind}/${now.name}`] ?? now.name;
    case "line-up":
      return titles.value[`line-ups/${now.name}`] || now.name;
    case "new":
      return t.filters.create[now.kind];
    case "new-line-up":
      return t.lineUps.create;
    case "nowhere":
      return t.nowhere;
    default:
      return t.nav[now.page];
  }
}

function Page({ now }: { readonly now: Route }): JSX.Element {
  switch (now.page) {
    case "campaigns":
    case "coupons":
      return <Filters key={now.page} kind={now.page} />;
    case "filter":
      return <FilterPage key={`${now.kind}/${now.name}`} kind={now.kind} name={now.name} />;
    case "new":
      return <NewFilter key={`${now.kind}/${now.from ?? ""}`} {...now} />;
    case "line-ups":
      return <LineUps />;
    case "line-up":
      return <LineUpPage key={now.name} name={now.name} />;
    case "new-line-up":
      return <NewLineUp key={now.from ?? ""} {...now} />;
    case "uploads":
      return <Uploads />;
    case "activity":
      return <Activity />;
    case "system":
      return <System />;
    case "requests":
      return <Requests />;
    case "nowhere":
      return (
        <p>
          <a href="#/campaigns">{texts.value.nav.campaigns}</a>
        </p>
      );
  }
}

/** The tab that a page belongs to. */
function tabOf(now: Route): string {
  switch (now.page) {
    case "filter":
    case "new":
      return now.kind;
    case "line-up":
    case "new-line-up":
      return "line-ups";
    case "requests":
      return "system";
    default:
      return now.page;
  }
}

function State(): JSX.Element {
  const t = texts.value.state;
  const now = readiness.value;
  if (now === undefined) {
    return <Tag tone="quiet">{t.connecting}</Tag>;
  }
  if (!now.isReady) {
    return <Tag tone="bad">{t.down}</Tag>;
  }
  return now.writes === undefined ? <Tag tone="good">{t.ready}</Tag> : <Tag tone="warn">{t.readOnly}</Tag>;
}

function Navigation({ now }: { readonly now: Route }): JSX.Element {
  const t = texts.value.nav;
  const tabs = [
    ["campaigns", allowed("GET /v1/campaigns")],
    ["coupons", allowed("GET /v1/coupons")],
    ["line-ups", allowed("GET /v1/line-ups")],
    ["uploads", allowed("GET /v1/imports")],
    ["activity", allowed("GET /v1/events") && info.value?.key?.prefix === undefined],
    ["system", true],
  ] as const;
  return (
    <nav aria-label={t.label}>
      {tabs
        .filter(([, isShown]) => isShown)
        .map(([tab]) => (
          <a key={tab} href={`#/${tab}`} aria-current={tabOf(now) === tab ? "page" : undefined}>
            {t[tab]}
          </a>
        ))}
    </nav>
  );
}

function Settings(): JSX.Element {
  const t = texts.value.settings;
  const known = info.value?.key;
  const themes: readonly Theme[] = ["system", "light", "dark"];
  return (
    <Menu label={t.title} face="☰">
      <Choice label={t.theme} value={choice.value} options={themes.map((theme) => [theme, t.themes[theme]] as const)} change={(theme) => (choice.value = theme)} />
      {known !== undefined && (
        <p>
          {t.key} <b>{known.name}</b>
          <br />
          <small>{t.scopes(known.scopes.join(", "))}</small>
          {known.prefix !== undefined && <small> {t.prefix(known.prefix)}</small>}
        </p>
      )}
      {key !== "" && (
        <button type="button" onClick={() => signOut()}>
          {t.forget}
        </button>
      )}
      <a href="docs/">{t.api}</a>
    </Menu>
  );
}

export function App(): JSX.Element {
  const t = texts.value;
  const now = route.value;
  const title = titleOf(now);
  const heading = useRef<HTMLHeadingElement>(null);
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${title} · cuckood`;
    document.documentElement.lang = language.value;
  }, [title, language.value]);
  useEffect(() => {
    // Whoever came by a link goes on reading at the new page's heading.
    if (!isFirst.current) {
      heading.current?.focus();
      scrollTo(0, 0);
    }
    isFirst.current = false;
  }, [now]);
  const isLocked = refusal.value !== undefined;
  const needsNothing = now.page === "system" || now.page === "requests";
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), heading.current?.focus())}>
        {t.skip}
      </a>
      <header class="top">
        <a class="brand" href="#/campaigns">
          <img src="console/icon.svg" alt="" width="22" height="22" /> cuckood
        </a>
        <State />
        <Navigation now={now} />
        <div class="end">
          <select aria-label={t.settings.language} value={language.value} onChange={(event) => speak(event.currentTarget.value as Language)}>
            {Object.entries(LANGUAGES).map(([tag, name]) => (
              <option key={tag} value={tag} lang={tag}>
                {name}
              </option>
            ))}
          </select>
          <Settings />
        </div>
      </header>
      <main id="content">
        <h1 ref={heading} tabIndex={-1}>
          {title}
        </h1>
        {isLocked && <SignIn problem={refusal.value} />}
        {needsNothing || (isKnown.value && !isLocked) ? <Page now={now} /> : !isLocked && <p class="lead">{t.asking}</p>}
        <footer class="hint">{t.zone(zoneName())}</footer>
      </main>
      <CurlDialog />
      <QuestionDialog />
    </>
  );
}
