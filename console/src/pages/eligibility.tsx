/** Tries which of several campaigns a user may see, and why. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Call } from "../api/call.ts";
import { exclusionOf } from "../api/exclusion.ts";
import type { Row } from "../api/types.ts";
import { Action } from "../parts/action.tsx";
import { Check, itemsOf, Lines, Panel, Text } from "../parts/panel.tsx";
import { Table } from "../parts/table.tsx";
import { accepts } from "../state/session.ts";

interface Answer {
  readonly eligible: readonly string[];
  readonly evaluated: number;
  readonly unknown: readonly string[];
  readonly inactive: readonly string[];
  readonly excluded?: readonly string[];
  readonly explanations?: readonly Row[];
}

function outcome(answer: Answer, campaigns: readonly string[]): Row[] {
  return campaigns.map((campaign, index) => ({
    campaign,
    outcome: answer.eligible.includes(campaign)
      ? "eligible"
      : answer.unknown.includes(campaign)
        ? "there is no such campaign"
        : answer.inactive.includes(campaign)
          ? "outside its window"
          : answer.excluded?.includes(campaign)
            ? "excluded"
            : index < answer.evaluated
              ? "the user is not in it"
              : "not looked at: enough were found before",
  }));
}

const REQUEST = "EligibilityRequest";

export function Eligibility(): JSX.Element {
  const [user, setUser] = useState("");
  const [campaigns, setCampaigns] = useState("");
  const [limit, setLimit] = useState("");
  const [unless, setUnless] = useState("");
  const [lineUp, setLineUp] = useState("");
  const [explains, setExplains] = useState(true);
  const [has, knowsUnless, knowsLineUps] = [accepts(REQUEST, "explain"), accepts(REQUEST, "unless"), accepts(REQUEST, "line_up")];
  const names = itemsOf(campaigns).map((name) => name.trim());
  const explain = has && explains ? true : undefined;
  const body = () => {
    if (lineUp !== "") {
      return { user, line_up: lineUp, limit: limit === "" ? undefined : Number(limit), explain };
    }
    const exclusions = knowsUnless ? itemsOf(unless).map(exclusionOf) : [];
    return { user, campaigns: names, limit: limit === "" ? undefined : Number(limit), unless: exclusions.length > 0 ? exclusions : undefined, explain };
  };
  const call = (): Call | undefined =>
    user === "" || (names.length === 0 && lineUp === "")
      ? undefined
      : { method: "POST", path: "v1/eligibility", body: body() };
  return (
    <Panel title="Which campaigns may this user see?" wide>
      <Action<Answer>
        label="Try"
        call={call}
        answer={(answer) => (
          <>
            <p class={answer.eligible.length > 0 ? "notice good" : "notice"}>
              {answer.eligible.length > 0 ? `Eligible: ${answer.eligible.join(", ")}` : "None of them"}
            </p>
            {answer.unknown.length > 0 && <p class="hint">There is no campaign {answer.unknown.join(", ")}.</p>}
            {answer.explanations !== undefined ? (
              <Table label="Explanations" rows={answer.explanations} />
            ) : (
              names.length > 0 && lineUp === "" && <Table label="Outcomes" rows={outcome(answer, names)} />
            )}
          </>
        )}
      >
        <div class="fields">
          <Text label="User" value={user} change={setUser} required />
          <Text label="At most" type="number" min={1} max={256} value={limit} change={setLimit} hint="campaigns; empty: as the line-up says, or one" />
          {knowsLineUps && <Text label="Line-up" value={lineUp} change={setLineUp} hint="Instead of campaigns" />}
        </div>
        {lineUp === "" && (
          <Lines label="Campaigns, one a line, the preferred first" value={campaigns} change={setCampaigns} rows={4} />
        )}
        {knowsUnless && lineUp === "" && (
          <Lines
            label="Unless the user is in"
            value={unless}
            change={setUnless}
            hint="A campaign a line; after it how often at least, and for which campaign alone: seen 3 summer"
            rows={2}
          />
        )}
        {has && <Check label="Explain" checked={explains} change={setExplains} />}
      </Action>
    </Panel>
  );
}
