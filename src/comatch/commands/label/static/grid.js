// A grid that shows any number of pictures: only the tiles on the screen exist.

const GAP = 6; // pixels
const WIDE = 150; // pixels of a tile, at least
const MARGIN = 2; // rows above and below the screen
const DRAG = 6; // pixels from which a press is a drag

export class Grid {
  constructor(element, tiles, band, describe, onZoom, onChange) {
    Object.assign(this, { element, tiles, band, describe, onZoom, onChange });
    this.list = [];
    this.focus = 0; // place in the list
    this.anchor = 0; // where a range of selected pictures begins
    this.selected = new Set(); // pictures
    this.shown = new Map(); // tiles by picture
    new ResizeObserver(() => this.draw(true)).observe(element);
    element.addEventListener("scroll", () => this.draw());
    element.addEventListener("pointerdown", (event) => this.press(event));
    element.addEventListener("dblclick", (event) => {
      const place = this.placeAt(event);
      if (place !== null) this.onZoom(this.list[place]);
    });
  }

  // ---------------------------------------------------------------- contents

  show(list) {
    this.list = list;
    this.selected.clear();
    this.focus = this.anchor = 0;
    this.element.scrollTop = 0;
    this.draw(true);
  }

  // New contents in the same view: what is on the screen stays where it is.
  replace(fresh, back = []) {
    const there = new Set(fresh);
    const focused = this.list[this.focus];
    const end = this.lastVisible() + 1;
    const head = this.list.slice(0, end).filter((picture) => there.has(picture));
    const first = back.filter((picture) => there.has(picture));
    const early = new Set([...head, ...first]);
    const place = Math.min(this.focus, head.length);
    const kept = head.filter((picture) => !first.includes(picture));
    this.list = [
      ...kept.slice(0, place), ...first, ...kept.slice(place),
      ...fresh.filter((picture) => !early.has(picture)),
    ];
    for (const picture of this.selected) if (!there.has(picture)) this.selected.delete(picture);
    const found = first.length ? this.list.indexOf(first[0]) : this.list.indexOf(focused);
    if (found >= 0) this.focus = found;
    this.focus = Math.max(0, Math.min(this.focus, this.list.length - 1));
    this.anchor = this.focus;
    this.draw(true);
  }

  lastVisible() {
    if (!this.list.length) return -1;
    const { columns, side } = this.measure();
    const row = Math.floor((this.element.scrollTop + this.element.clientHeight) / (side + GAP));
    return Math.min(this.list.length - 1, (row + 1) * columns - 1);
  }

  current() {
    return this.list[this.focus];
  }

  // The pictures that an action is for, in their order.
  targets() {
    if (!this.selected.size) return this.list.length ? [this.current()] : [];
    return this.list.filter((picture) => this.selected.has(picture));
  }

  // ---------------------------------------------------------------- drawing

  measure() {
    const width = this.element.clientWidth - 2 * GAP;
    const wide = width < 480 ? 105 : WIDE;
    const columns = Math.max(1, Math.floor((width + GAP) / (wide + GAP)));
    return { columns, side: Math.floor((width + GAP) / columns) - GAP };
  }

  draw(all = false) {
    const { columns, side } = this.measure();
    const step = side + GAP;
    const { scrollTop, clientHeight } = this.element;
    this.tiles.style.height = `${Math.ceil(this.list.length / columns) * step + GAP}px`;
    const from = Math.max(0, Math.floor(scrollTop / step) - MARGIN) * columns;
    const to = Math.min(this.list.length, (Math.ceil((scrollTop + clientHeight) / step) + MARGIN) * columns);
    const needed = new Map();
    for (let place = from; place < to; place += 1) needed.set(this.list[place], place);
    const focused = this.current();
    if (focused !== undefined) needed.set(focused, this.focus); // a screen reader is on it
    for (const [picture, tile] of this.shown) {
      if (!needed.has(picture)) {
        tile.remove();
        this.shown.delete(picture);
      }
    }
    for (const [picture, place] of needed) {
      let tile = this.shown.get(picture);
      const fresh = !tile;
      if (fresh) {
        tile = newTile(picture);
        this.shown.set(picture, tile);
        this.tiles.append(tile);
      }
      if (!fresh && !all) continue;
      const x = GAP + (place % columns) * step;
      const y = GAP + Math.floor(place / columns) * step;
      tile.style.transform = `translate(${x}px, ${y}px)`;
      tile.style.width = tile.style.height = `${side}px`;
      this.dress(tile, picture, place);
    }
    if (focused === undefined) this.element.removeAttribute("aria-activedescendant");
    else this.element.setAttribute("aria-activedescendant", `p${focused}`);
  }

  dress(tile, picture, place) {
    const { caption, label, labelled } = this.describe(picture);
    tile.lastChild.textContent = caption;
    tile.classList.toggle("labelled", labelled);
    tile.classList.toggle("focus", place === this.focus);
    tile.setAttribute("aria-selected", this.selected.has(picture));
    tile.setAttribute("aria-label", label);
    tile.setAttribute("aria-setsize", this.list.length);
    tile.setAttribute("aria-posinset", place + 1);
  }

  // ---------------------------------------------------------------- selection

  toggle(place) {
    const picture = this.list[place];
    if (!this.selected.delete(picture)) this.selected.add(picture);
  }

  selectTo(place) {
    const [from, to] = [this.anchor, place].sort((a, b) => a - b);
    for (let i = from; i <= to; i += 1) this.selected.add(this.list[i]);
  }

  moveTo(place, extend = false) {
    if (!this.list.length) return;
    place = Math.max(0, Math.min(place, this.list.length - 1));
    this.focus = place;
    if (extend) this.selectTo(place);
    else this.anchor = place;
    this.scrollTo(place);
    this.changed();
  }

  scrollTo(place) {
    const { columns, side } = this.measure();
    const top = GAP + Math.floor(place / columns) * (side + GAP);
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top - GAP;
    else if (top + side > scrollTop + clientHeight) this.element.scrollTop = top + side + GAP - clientHeight;
  }

  clear() {
    this.selected.clear();
    this.changed();
  }

  selectAll(list = this.list) {
    this.selected = new Set(list);
    this.changed();
  }

  changed() {
    this.draw(true);
    this.onChange();
  }

  // Returns whether the key was one of the grid's.
  key(event) {
    const { columns, side } = this.measure();
    const page = columns * Math.max(1, Math.floor(this.element.clientHeight / (side + GAP)));
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns,
      PageDown: page, PageUp: -page, Home: -this.list.length, End: this.list.length,
    };
    if (event.key in steps) this.moveTo(this.focus + steps[event.key], event.shiftKey);
    else if (event.key === " " && this.list.length) {
      this.anchor = this.focus;
      this.toggle(this.focus);
      this.changed();
    } else return false;
    return true;
  }

  // ---------------------------------------------------------------- pointer

  position(event) {
    const box = this.element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top + this.element.scrollTop };
  }

  placeAt(event) {
    const { columns, side } = this.measure();
    const { x, y } = this.position(event);
    const column = Math.floor((x - GAP) / (side + GAP));
    const place = Math.floor((y - GAP) / (side + GAP)) * columns + column;
    const inside = x >= GAP && y >= GAP && column < columns && place < this.list.length;
    return inside ? place : null;
  }

  press(event) {
    if (event.button !== 0 || event.clientX > this.element.getBoundingClientRect().left + this.element.clientWidth) return;
    this.element.focus({ preventScroll: true });
    const start = this.position(event);
    const before = new Set(this.selected);
    let dragging = false;
    const move = (now) => {
      const here = this.position(now);
      dragging ||= Math.hypot(here.x - start.x, here.y - start.y) > DRAG;
      if (!dragging) return;
      if (event.pointerType !== "mouse") return; // a finger scrolls
      this.selectBand(start, here, before);
    };
    const stop = (end) => {
      this.element.removeEventListener("pointermove", move);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
      this.band.hidden = true;
      if (!dragging && end.type === "pointerup") this.click(end);
      this.onChange();
    };
    this.element.addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop);
  }

  click(event) {
    const place = this.placeAt(event);
    if (place === null) return;
    this.focus = place;
    if (event.shiftKey) this.selectTo(place);
    else {
      this.anchor = place;
      this.toggle(place);
    }
    this.changed();
  }

  selectBand(a, b, before) {
    const [left, right] = [a.x, b.x].sort((p, q) => p - q);
    const [top, bottom] = [a.y, b.y].sort((p, q) => p - q);
    Object.assign(this.band.style, {
      left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px`,
    });
    this.band.hidden = false;
    const { columns, side } = this.measure();
    const step = side + GAP;
    this.selected = new Set(before);
    for (let row = Math.max(0, Math.floor((top - GAP) / step)); row * step < bottom; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const x = GAP + column * step;
        const picture = this.list[row * columns + column];
        if (picture !== undefined && x < right && x + side > left) this.selected.add(picture);
      }
    }
    this.draw(true);
  }
}

function newTile(picture) {
  const tile = document.createElement("div");
  tile.className = "tile";
  tile.id = `p${picture}`;
  tile.setAttribute("role", "option");
  const image = new Image();
  image.alt = "";
  image.decoding = "async";
  image.onerror = () => tile.classList.add("broken");
  image.src = `small/${picture}`;
  const caption = document.createElement("span");
  caption.className = "caption";
  tile.append(image, caption);
  return tile;
}
