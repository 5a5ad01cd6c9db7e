import "uplot/dist/uPlot.min.css";
import "./style.css";
import { render } from "preact";
import { Dashboard } from "./dashboard";

const root = document.getElementById("app");
if (root) render(<Dashboard />, root);
