import { render } from "preact";
import { readServices } from "./api/services";
import { App } from "./app";
import { noteError } from "./parts/notices";
import "./styles.css";

const place = document.getElementById("app");
if (place) render(<App />, place);
readServices().catch(noteError);
