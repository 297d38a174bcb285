"use strict";
// The map: a dot under the pointer, or chosen by arrow keys, shows its image.
const data = document.getElementById("map-data");
if (data) {
  const { points, classes } = JSON.parse(data.textContent);
  const box = document.getElementById("points");
  const svg = box.querySelector("svg");
  const tip = document.getElementById("tip");
  const picture = tip.querySelector("img");
  const text = tip.querySelector("p");
  const dots = [...svg.querySelectorAll("circle")];
  const chosen = document.getElementById("one-class");
  const mistakes = document.getElementById("only-mistakes");
  let current = -1;

  const wrong = (point) => point.label !== null && point.label !== classes[point.class];
  const visible = (i) => !dots[i].classList.contains("dim");
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  function hide() {
    if (current >= 0) dots[current].classList.remove("on");
    current = -1;
    tip.hidden = true;
  }

  function show(i) {
    hide();
    current = i;
    const point = points[i];
    dots[i].classList.add("on");
    const lines = [`${classes[point.class]} ${percent(point.probability)}`];
    if (wrong(point)) lines.push(`label: ${point.label}`);
    if (point.fit !== null) lines.push(`fit ${point.fit.toFixed(2)}`);
    lines.push(`${point.part}: ${point.name}`);
    text.textContent = lines.join("\n");
    picture.hidden = !point.picture;
    if (point.picture) picture.src = point.picture;
    tip.hidden = false;
    const place = dots[i].getBoundingClientRect();
    const frame = box.getBoundingClientRect();
    const right = place.right - frame.left + 8;
    const fits = right + tip.offsetWidth <= frame.width;
    const left = fits ? right : Math.max(0, place.left - frame.left - tip.offsetWidth - 8);
    const top = Math.min(place.top - frame.top, frame.height - tip.offsetHeight);
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(0, top)}px`;
  }

  function filter() {
    hide();
    points.forEach((point, i) => {
      const other = chosen.value !== "" && Number(chosen.value) !== point.class;
      dots[i].classList.toggle("dim", other || (mistakes.checked && !wrong(point)));
    });
  }

  svg.addEventListener("pointerover", (event) => {
    const i = dots.indexOf(event.target);
    if (i >= 0 && visible(i)) show(i);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    let i = current < 0 && step < 0 ? 0 : current;
    for (let tried = 0; tried < dots.length; tried++) {
      i = (i + step + dots.length) % dots.length;
      if (visible(i)) return show(i);
    }
  });
  chosen.addEventListener("change", filter);
  mistakes.addEventListener("change", filter);
}
