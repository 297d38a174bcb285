// What the page knows: pictures by number, their marks, and what the classifier says.

export const SKIPPED = "skipped";
export const NONE = "none of these";

export const data = {
  names: [],
  labels: [], // of each picture, "" without
  statuses: [],
  classes: [],
  counts: new Map(), // pictures of each class
  labelled: 0,
  passed: 0,
  gone: new Set(),
  unread: new Set(),
  order: [], // suggested pictures, the first one first
  model: null,
  guess: [], // of each picture, a class or undefined
  probability: [],
  margin: [],
};

export function addNames(names) {
  for (const name of names) {
    data.names.push(name);
    data.labels.push("");
    data.statuses.push("");
  }
}

export function setMark(picture, label, status) {
  if (picture >= data.names.length) return;
  const before = data.labels[picture];
  if (before) count(before, -1);
  if (data.statuses[picture]) data.passed -= 1;
  data.labels[picture] = label;
  data.statuses[picture] = status;
  if (label) count(label, 1);
  if (status) data.passed += 1;
  if (label && !data.classes.includes(label)) data.classes.push(label);
}

function count(label, change) {
  data.counts.set(label, (data.counts.get(label) ?? 0) + change);
  data.labelled += change;
}

export function setModel(model) {
  data.model = model;
  data.guess = [];
  data.probability = [];
  data.margin = [];
  if (!model) return;
  model.numbers.forEach((picture, i) => {
    data.guess[picture] = model.classes[model.guess[i]];
    data.probability[picture] = model.probability[i];
    data.margin[picture] = model.margin[i];
  });
}

export const marked = (picture) => Boolean(data.labels[picture] || data.statuses[picture]);
const hidden = (picture) => data.gone.has(picture) || data.unread.has(picture);

// All pictures in a fixed random order, so that the first ones differ.
let shuffled = [];
function inRandomOrder() {
  const from = shuffled.length;
  const more = [];
  for (let i = from; i < data.names.length; i += 1) more.push(i);
  let seed = 1;
  const random = () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return seed / 2 ** 32;
  };
  for (let i = more.length - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    [more[i], more[j]] = [more[j], more[i]];
  }
  shuffled = shuffled.concat(more);
  return shuffled;
}

export const GROUP = 30; // pictures that are confirmed at a time

// The pictures of each view, in its order.
const views = {
  next() {
    const first = new Set(data.order);
    const rest = inRandomOrder().filter((picture) => !first.has(picture));
    return [...first, ...rest].filter((picture) => !marked(picture) && !hidden(picture));
  },
  groups(label) {
    return predicted()
      .filter((picture) => data.guess[picture] === label)
      .sort((a, b) => data.probability[b] - data.probability[a])
      .slice(0, GROUP);
  },
  doubtful() {
    return predicted().sort((a, b) => data.margin[a] - data.margin[b]);
  },
  check() {
    const rows = data.model?.contradicted ?? [];
    return rows.map(([picture]) => picture).filter((picture) => data.labels[picture]);
  },
  labelled() {
    const found = inOrder().filter((picture) => data.labels[picture]);
    const place = new Map(data.classes.map((label, i) => [label, i]));
    return found.sort((a, b) => place.get(data.labels[a]) - place.get(data.labels[b]) || a - b);
  },
  passed() {
    return inOrder().filter((picture) => data.statuses[picture]);
  },
};

const inOrder = () => data.names.map((_, picture) => picture);

function predicted() {
  const numbers = data.model?.numbers ?? [];
  return numbers.filter((picture) => !marked(picture) && !hidden(picture));
}

export function picturesOf(view, label, search) {
  const found = views[view](label);
  const text = search.trim().toLowerCase();
  if (!text) return found;
  return found.filter((picture) =>
    [data.labels[picture], data.guess[picture] ?? "", data.names[picture]].some((one) =>
      one.toLowerCase().includes(text),
    ),
  );
}

// Classes that the classifier finds among unmarked pictures, with their numbers.
export function groupSizes() {
  const sizes = new Map();
  for (const picture of predicted()) {
    const label = data.guess[picture];
    sizes.set(label, (sizes.get(label) ?? 0) + 1);
  }
  return sizes;
}

// What the classifier says against a label, for the view Check.
export function contradiction(picture) {
  const row = data.model?.contradicted.find(([number]) => number === picture);
  return row ? data.model.classes[row[1]] : null;
}
