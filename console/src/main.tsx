/** Starts the page. */

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { App } from "./app.tsx";
import { keepReading } from "./state/history.ts";

const place = document.getElementById("app");
if (place !== null) {
  render(<App />, place);
  void keepReading();
}
