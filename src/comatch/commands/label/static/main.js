// The page: views, classes, keys and messages.

import { NONE, SKIPPED, GROUP, contradiction, data, groupSizes, picturesOf } from "./data.js";
import { Grid } from "./grid.js";
import { act, connect, link, waiting } from "./server.js";

const KEYS = [..."1234567890qwertuiopadfghjklbm"]; // of classes; other letters are actions
const $ = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en");
const many = (n) => `${number(n)} picture${n === 1 ? "" : "s"}`;
const percent = (share) => `${Math.round(100 * share)} %`;

const HINTS = {
  next: "Pictures that teach most come first.",
  doubtful: "Pictures between two classes, the most doubtful first.",
  check: "Labels that the classifier contradicts. Give the right class; a right label can stay.",
  labelled: "Your labels, class by class.",
  passed: "Pictures that you skipped, or that are none of the classes.",
};
const EMPTY = {
  next: "Every picture is labelled or skipped.",
  groups: "No groups yet: label some pictures of two classes or more.",
  doubtful: "Nothing yet: label some pictures of two classes or more.",
  check: "No label is contradicted so far.",
  labelled: "No picture is labelled yet.",
  passed: "No picture is skipped.",
};

let view = "next";
let group = ""; // the class to confirm
const grid = new Grid($("grid"), $("tiles"), $("band"), describe, openZoom, showSelection);

// ------------------------------------------------------------------ pictures

function describe(picture) {
  const label = data.labels[picture];
  const status = data.statuses[picture];
  const guess = data.guess[picture];
  let caption = label || status;
  if (!caption && guess) caption = `${guess}? ${percent(data.probability[picture])}`;
  const other = view === "check" && contradiction(picture);
  if (data.unread.has(picture)) caption = "cannot be read";
  if (data.gone.has(picture)) caption = "no longer in the folder";
  if (other) caption = `${label}: or ${other}?`;
  return { caption, label: `${data.names[picture]}${caption ? `, ${caption}` : ""}`, labelled: Boolean(label) };
}

function fresh() {
  return picturesOf(view, group, $("search").value);
}

function openView(name) {
  view = name;
  if (view === "groups") chooseGroup();
  grid.show(fresh());
  if (view === "groups") grid.selectAll();
  for (const button of document.querySelectorAll("nav button")) {
    button.setAttribute("aria-pressed", button.dataset.view === view);
  }
  showSelection();
  showAll();
}

function chooseGroup() {
  const sizes = groupSizes();
  if (!sizes.has(group)) {
    const [largest] = [...sizes].sort((a, b) => b[1] - a[1]);
    group = largest?.[0] ?? "";
  }
}

function refresh(undone = []) {
  if (view !== "groups") {
    grid.replace(fresh(), undone);
    return;
  }
  // A group is shown until it is confirmed: what the classifier learns meanwhile changes the next one.
  const left = grid.list.filter((picture) => !data.labels[picture] && !data.statuses[picture]);
  const selected = new Set(grid.selected);
  if (left.length) grid.replace([...left, ...undone.filter((one) => !left.includes(one))]);
  else {
    chooseGroup();
    grid.show(fresh());
    grid.selectAll();
    return;
  }
  grid.selected = selected;
  grid.draw(true);
}

// ------------------------------------------------------------------ actions

function mark(action, text) {
  const pictures = zoomed !== null ? [zoomed] : grid.targets();
  if (!pictures.length) return;
  act({ pictures, ...action });
  say(`${many(pictures.length)}: ${text}`);
  grid.selected.clear();
  const next = zoomed === null ? null : neighbour(1);
  refresh();
  if (zoomed !== null) showZoom(next ?? grid.current());
  showAll();
}

const give = (label) => mark({ label }, label);
const skip = () => mark({ status: SKIPPED }, "skipped");
const none = () => mark({ status: NONE }, "none of these");
const remove = () => mark({}, "label removed");

function undo() {
  act({ undo: true });
  say("Undone");
}

function confirmGroup() {
  if (view !== "groups" || !grid.list.length) return;
  const pictures = grid.targets();
  if (!grid.selected.size) return;
  act({ pictures, label: group });
  say(`${many(pictures.length)}: ${group}`);
  grid.list = [];
  refresh();
  showAll();
}

function typeClass(event) {
  event.preventDefault();
  const name = $("class-name").value.trim().replace(/\s+/g, " ");
  if (!name) return;
  give(data.classes.find((one) => one.toLowerCase() === name.toLowerCase()) ?? name);
  $("class-name").value = "";
  $("grid").focus();
}

// ------------------------------------------------------------------ zoom

let zoomed = null; // the picture in the dialog

function openZoom(picture) {
  if (picture === undefined) return;
  showZoom(picture);
  if (!$("zoom").open) $("zoom").showModal();
}

function showZoom(picture) {
  if (picture === undefined) {
    $("zoom").close();
    return;
  }
  zoomed = picture;
  const { label } = describe(picture);
  $("zoom-image").src = `large/${picture}`;
  $("zoom-image").alt = label;
  $("zoom-text").textContent = label;
  const place = grid.list.indexOf(picture);
  if (place >= 0) grid.moveTo(place);
}

async function explainZoom() {
  const answer = await fetch(`large/${zoomed}`);
  if (!answer.ok) $("zoom-text").textContent = `${data.names[zoomed]} ${await answer.text()}`;
}

function neighbour(step) {
  return grid.list[grid.list.indexOf(zoomed) + step];
}

function moveZoom(step) {
  const next = neighbour(step);
  if (next !== undefined) showZoom(next);
}

// ------------------------------------------------------------------ texts

function say(text) {
  $("message").textContent = text;
}

function showSelection() {
  const count = grid.selected.size;
  if (count) say(`${number(count)} selected`);
  else if (/ selected$/.test($("message").textContent)) say("");
  showGroup();
}

function showGroup() {
  const wanted = view === "groups" && grid.list.length > 0;
  $("group").hidden = !wanted;
  if (!wanted) return;
  const sizes = [...groupSizes()].sort((a, b) => b[1] - a[1]);
  if (!sizes.some(([label]) => label === group)) sizes.unshift([group, grid.list.length]);
  $("group-class").replaceChildren(
    ...sizes.map(([label, size]) => new Option(`${label} (${number(size)})`, label, false, label === group)),
  );
  $("group-text").textContent =
    `The ${grid.list.length < GROUP ? grid.list.length : GROUP} surest. Click those that are wrong, then confirm ${number(grid.selected.size)}.`;
  $("confirm").disabled = !grid.selected.size;
}

function showProgress() {
  const left = data.names.length - data.labelled - data.passed;
  $("progress").textContent =
    `${number(data.labelled)} of ${number(data.names.length)} labelled, ${number(data.passed)} skipped, ${number(left)} left`;
  $("folder").textContent = link.folder;
  $("file").textContent = link.file;
  const found = data.model?.accuracy;
  const { labelled } = data;
  $("estimate").textContent = found
    ? `Accuracy about ${percent(found.share)} (95 % confidence interval ${percent(found.low)} to ${percent(found.high)}; ${found.folds}-fold cross-validation on ${found.images} labels, which are no random sample)`
    : labelled >= 8 && data.model ? "" : "The accuracy is estimated from 8 labels on.";
  const [done, all] = link.progress ?? [0, 0];
  $("encoding").hidden = !link.progress || done >= all;
  $("encoding-text").textContent = done
    ? `Comparing pictures: ${number(done)} of ${number(all)}.${data.order.length ? "" : " The order is random until then."}`
    : "Preparing to compare pictures. The order is random until then.";
  $("encoding-bar").value = all ? done / all : 0;
}

function showProblems() {
  const lines = [...link.problems];
  if (link.offline) {
    const lost = waiting() ? ` ${waiting()} actions wait here to be saved.` : "";
    lines.unshift(`No answer from comatch label: is it still running?${lost}`);
  } else if (link.unsaved) lines.unshift(`${many(link.unsaved)} not saved yet.`);
  if (link.refused) lines.push(link.refused);
  const now = lines.join("\n");
  if ($("problems").dataset.text === now) return;
  $("problems").dataset.text = now;
  $("problems").replaceChildren(...lines.map((line) => {
    const paragraph = document.createElement("p");
    paragraph.textContent = line;
    return paragraph;
  }));
}

let classesShown = "";

function showClasses() {
  const now = JSON.stringify(data.classes.map((label) => [label, data.counts.get(label) ?? 0]));
  if (now === classesShown) return;
  classesShown = now;
  const focused = document.activeElement?.dataset.label;
  $("classes").replaceChildren(...data.classes.map((label, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.label = label;
    button.title = label;
    if (KEYS[i]) {
      const key = document.createElement("kbd");
      key.textContent = KEYS[i];
      button.append(key, " ");
      button.setAttribute("aria-keyshortcuts", KEYS[i]);
    }
    button.append(`${label} (${number(data.counts.get(label) ?? 0)})`);
    button.onclick = () => give(label);
    if (label === focused) setTimeout(() => button.focus());
    return button;
  }));
  $("class-names").replaceChildren(...data.classes.map((label) => new Option(label, label)));
}

function showAll() {
  showProgress();
  showProblems();
  showClasses();
  showGroup();
  $("hint").textContent = grid.list.length ? (HINTS[view] ?? "") : $("search").value ? "No such picture here." : EMPTY[view];
  $("hint").hidden = !$("hint").textContent;
}

// ------------------------------------------------------------------ keys

const ACTIONS = { s: skip, n: none, x: remove, Delete: remove, Backspace: remove, z: undo, y: confirmGroup };

function key(event) {
  if (event.target.matches("input, select") || $("help").open) return;
  if (event.ctrlKey || event.metaKey) {
    if (event.key === "z") undo();
    else if (event.key === "a" && zoomed === null) grid.selectAll(grid.list.slice(0, grid.lastVisible() + 1));
    else return;
  } else if (event.altKey) return;
  else if (zoomed !== null && ["ArrowRight", "ArrowLeft"].includes(event.key)) moveZoom(event.key === "ArrowRight" ? 1 : -1);
  else if (zoomed !== null && event.key === "Escape") return;
  else if (event.target.matches("button") && [" ", "Enter"].includes(event.key)) return;
  else if (zoomed === null && grid.key(event)) $("grid").focus({ preventScroll: true });
  else if (event.key === "Enter") openZoom(grid.current());
  else if (event.key === "Escape") grid.clear();
  else if (event.key === "/" && zoomed === null) $("search").focus();
  else if (event.key === "c" && zoomed === null) $("class-name").focus();
  else if (event.key === "?") $("help").showModal();
  else if (event.key in ACTIONS) ACTIONS[event.key]();
  else {
    const place = KEYS.indexOf(event.key);
    if (place < 0 || place >= data.classes.length) return;
    give(data.classes[place]);
  }
  event.preventDefault();
}

// ------------------------------------------------------------------ start

for (const button of document.querySelectorAll("nav button")) {
  button.onclick = () => {
    openView(button.dataset.view);
    $("grid").focus();
  };
}
$("search").oninput = () => { grid.show(fresh()); showAll(); };
for (const id of ["search", "class-name"]) {
  $(id).addEventListener("keydown", (event) => {
    if (event.key === "Escape") $("grid").focus();
  });
}
$("group-class").onchange = () => { group = $("group-class").value; openView("groups"); };
$("confirm").onclick = confirmGroup;
$("new-class").onsubmit = typeClass;
$("skip").onclick = skip;
$("none").onclick = none;
$("clear").onclick = remove;
$("undo").onclick = undo;
$("zoom-button").onclick = () => openZoom(grid.targets()[0]);
$("zoom-before").onclick = () => moveZoom(-1);
$("zoom-after").onclick = () => moveZoom(1);
$("zoom-close").onclick = () => $("zoom").close();
$("zoom").onclose = () => { zoomed = null; $("grid").focus(); };
$("zoom-image").onerror = explainZoom;
$("help-button").onclick = () => $("help").showModal();
$("help-close").onclick = () => $("help").close();
addEventListener("keydown", key);

let noticed = "";
let started = false;
await connect(({ moved = [], undone = [], learned = false }) => {
  if (!started) {
    started = true;
    openView("next");
    $("grid").focus();
    return;
  }
  if (moved.length || learned) refresh(undone);
  if (link.notice !== noticed) say(noticed = link.notice);
  showAll();
});
