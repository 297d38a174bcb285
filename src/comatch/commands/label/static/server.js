// Talks to the server. Actions wait in a queue until they are saved, so none is lost.

import { data, addNames, setMark, setModel } from "./data.js";

const POLL = 1000; // milliseconds
const AT_ONCE = 50; // actions

const tab = [...crypto.getRandomValues(new Uint32Array(2))].join("-");
const queue = [];
let version = 0;
let orderVersion = 0;
let modelVersion = 0;
let sending = false;
let changed = () => {};

export const link = { offline: false, unsaved: 0, problems: [], notice: "", progress: null, file: "", folder: "", refused: "" };
export const waiting = () => queue.length + link.unsaved;

export async function connect(onChange) {
  changed = onChange;
  await poll();
  const again = async () => {
    if (!document.hidden || queue.length) await poll();
    setTimeout(again, POLL);
  };
  setTimeout(again, POLL);
  document.addEventListener("visibilitychange", () => document.hidden || poll());
  addEventListener("beforeunload", (event) => waiting() && event.preventDefault());
}

export function act(action) {
  if (!action.undo) show(action);
  queue.push(action);
  flush();
}

function show({ pictures, label, status }) {
  for (const picture of pictures) setMark(picture, label ?? "", status ?? "");
}

async function flush() {
  if (sending) return;
  sending = true;
  while (queue.length) {
    const actions = queue.slice(0, AT_ONCE);
    try {
      const answer = await fetch("act", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ tab, since: version, actions }),
      });
      queue.splice(0, actions.length);
      if (answer.ok) {
        link.refused = "";
        await take(await answer.json(), actions.some((action) => action.undo));
      } else {
        link.refused = await answer.text();
        version = 0; // what is shown may be wrong: read all marks again
        await poll();
      }
    } catch {
      offline(true);
      break; // the next poll tries again
    }
  }
  sending = false;
}

async function poll() {
  try {
    const answer = await fetch(`state?since=${version}`);
    if (!answer.ok) throw new Error(answer.statusText);
    await take(await answer.json());
  } catch {
    offline(true);
    return;
  }
  if (queue.length) flush();
}

function offline(is) {
  if (link.offline === is) return;
  link.offline = is;
  changed({});
}

async function json(path) {
  return (await fetch(path)).json();
}

async function take(state, undone = false) {
  offline(false);
  if (state.pictures > data.names.length) addNames(await json(`pictures?from=${data.names.length}`));
  data.classes = [...state.classes, ...data.classes.filter((one) => !state.classes.includes(one))];
  const moved = [];
  for (const [picture, label, status] of state.marks) {
    if (data.labels[picture] !== label || data.statuses[picture] !== status) moved.push(picture);
    setMark(picture, label, status);
  }
  for (const action of queue) if (!action.undo) show(action);
  data.gone = new Set(state.gone);
  data.unread = new Set(state.unread);
  version = state.version;
  Object.assign(link, {
    unsaved: state.unsaved, problems: state.problems, notice: state.notice,
    progress: state.progress, file: state.file, folder: state.folder,
  });
  let learned = false;
  if (state.order !== orderVersion) {
    data.order = await json("order");
    orderVersion = state.order;
    learned = true;
  }
  if (state.model !== modelVersion) {
    setModel(await json("model"));
    modelVersion = state.model;
    learned = true;
  }
  changed({ moved, undone: undone ? moved : [], learned });
}
