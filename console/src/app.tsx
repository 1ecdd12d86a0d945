/** The frame around every page: where one can go, how the service is, who one is. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { CurlDialog } from "./parts/curl.tsx";
import { Tag } from "./parts/panel.tsx";
import { choice, next } from "./parts/theme.ts";
import { Eligibility } from "./pages/eligibility.tsx";
import { Events } from "./pages/events.tsx";
import { FilterPage } from "./pages/filter.tsx";
import { Filters } from "./pages/filters.tsx";
import { Imports } from "./pages/imports.tsx";
import { NewFilter } from "./pages/new.tsx";
import { Overview } from "./pages/overview.tsx";
import { Requests } from "./pages/requests.tsx";
import { SignIn } from "./pages/sign_in.tsx";
import { route, type Route } from "./route.ts";
import { readiness } from "./state/history.ts";
import { allowed, info, isKnown, key, refusal, signOut } from "./state/session.ts";

function titleOf(now: Route): string {
  switch (now.page) {
    case "filter":
      return now.name;
    case "new":
      return "New filter";
    case "nowhere":
      return "No such page";
    default:
      return now.page.charAt(0).toUpperCase() + now.page.slice(1);
  }
}

function Page({ now }: { readonly now: Route }): JSX.Element {
  switch (now.page) {
    case "overview":
      return <Overview />;
    case "filters":
      return <Filters />;
    case "filter":
      return <FilterPage key={`${now.kind}/${now.name}`} kind={now.kind} name={now.name} />;
    case "new":
      return <NewFilter />;
    case "eligibility":
      return <Eligibility />;
    case "imports":
      return <Imports />;
    case "events":
      return <Events />;
    case "requests":
      return <Requests />;
    case "nowhere":
      return <p>There is nothing here.</p>;
  }
}

export function State(): JSX.Element {
  const now = readiness.value;
  if (now === undefined) {
    return <Tag tone="quiet">connecting</Tag>;
  }
  if (!now.isReady) {
    return <Tag tone="bad">{now.problem?.code ?? "not ready"}</Tag>;
  }
  return now.writes === undefined ? <Tag tone="good">ready</Tag> : <Tag tone="warn">no writes: {now.writes}</Tag>;
}

function Navigation({ now }: { readonly now: Route }): JSX.Element {
  const links: [string, string, boolean, boolean][] = [
    ["#/", "Overview", now.page === "overview", true],
    ["#/filters", "Filters", ["filters", "filter", "new"].includes(now.page), allowed("GET /v1/campaigns")],
    ["#/eligibility", "Eligibility", now.page === "eligibility", allowed("POST /v1/eligibility")],
    ["#/imports", "Imports", now.page === "imports", allowed("GET /v1/imports")],
    ["#/events", "Events", now.page === "events", allowed("GET /v1/events") && info.value?.key?.prefix === undefined],
    ["#/requests", "Requests", now.page === "requests", true],
  ];
  return (
    <nav aria-label="Pages">
      {links
        .filter(([, , , isShown]) => isShown)
        .map(([target, text, isHere]) => (
          <a key={target} href={target} aria-current={isHere ? "page" : undefined}>
            {text}
          </a>
        ))}
    </nav>
  );
}

function Caller(): JSX.Element | null {
  if (key.value === "") {
    return null;
  }
  const known = info.value?.key;
  return (
    <div class="caller">
      {known !== undefined && (
        <span title={`Scopes: ${known.scopes.join(", ")}${known.prefix ? `; names that begin with ${known.prefix}` : ""}`}>
          key <b>{known.name}</b>
        </span>
      )}
      <button type="button" class="plain" onClick={() => void signOut()}>
        Forget key
      </button>
    </div>
  );
}

export function App(): JSX.Element {
  const now = route.value;
  const title = titleOf(now);
  const heading = useRef<HTMLHeadingElement>(null);
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${title} · cuckood`;
    // Whoever came by a link goes on reading at the new page's heading.
    if (!isFirst.current) {
      heading.current?.focus();
      scrollTo(0, 0);
    }
    isFirst.current = false;
  }, [title, now.page]);
  const isLocked = refusal.value !== undefined;
  const needsNothing = now.page === "overview" || now.page === "requests";
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), heading.current?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href="#/" aria-label="cuckood, overview">
          <img src="console/icon.svg" alt="" width="22" height="22" /> cuckood
        </a>
        <State />
        <Navigation now={now} />
        <div class="end">
          <Caller />
          <button type="button" class="plain" onClick={next} title="Change between light and dark">
            Theme: {choice.value}
          </button>
          <a href="docs/">API</a>
        </div>
      </header>
      <main id="content">
        <h1 ref={heading} tabIndex={-1}>
          {title}
        </h1>
        {isLocked && <SignIn problem={refusal.value} />}
        {needsNothing || (isKnown.value && !isLocked) ? <Page now={now} /> : !isLocked && <p class="lead">Asking the service…</p>}
      </main>
      <CurlDialog />
    </>
  );
}
