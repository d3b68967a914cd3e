// The timelines of docs/traces.md: each takes the place of the picture above its numbers, which
// tools/draw_traces.py has stored. tests/test_traces.py compares what is shown with the files.
"use strict";
(() => {
const LEFT = 74, RIGHT = 10, ROW = 52, LEAST = 0.01; // pixels; the shortest range, in ms
const HELP = "Timeline: plus and minus zoom, left and right move, 0 shows all, down and up walk";
const ms = value => `${value.toFixed(3)} ms`;
const within = (value, least, most) => Math.max(least, Math.min(most, value));

// An element with its attributes and what is in it; of SVG where the name begins with "svg:"
function make(tag, attributes = {}, ...inside) {
  const space = `http://www.w3.org/${tag.startsWith("svg:") ? "2000/svg" : "1999/xhtml"}`;
  const made = document.createElementNS(space, tag.replace("svg:", ""));
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...inside);
  return made;
}

function draw(step, still) { // still: what the timeline takes the place of
  const { rows } = step, high = ROW * rows.length, fingers = new Map();
  let from = 0, length = 0, room = 0; // the range in ms, and its width in pixels
  const blocks = step.blocks.map(([row, lane, name, type, start, takes, back]) => {
    const { device, colour, lanes } = rows[row], each = 0.76 / lanes;
    const text = `${name} (${type}) on ${device}: starts at ${ms(start)}, takes ${ms(takes)}`;
    const drawn = make("svg:rect", { x: start, width: takes, y: row + 0.12 + lane * each,
      height: 0.94 * each, class: back ? `${colour} back` : colour });
    return { start, end: start + takes, drawn, text };
  });
  const large = step.copies.filter(([, , , bytes]) => bytes >= 1000);
  const copies = large.map(([source, target, tensor, bytes, start, takes]) => {
    const down = source < target ? 0.38 : -0.38, words = bytes.toLocaleString("en");
    const text = `Copy of ${tensor}, ${words} bytes, from ${rows[source].device} to `
      + `${rows[target].device}: starts at ${ms(start)}, takes ${ms(takes)}`;
    const ends = { x1: start, x2: start + takes, y1: source + 0.5 + down, y2: target + 0.5 - down };
    return { drawn: make("svg:line", ends), text };
  });
  const known = new Map([...copies, ...blocks].map(each => [each.drawn, each]));
  const plot = make("svg:svg", { x: LEFT, height: high, preserveAspectRatio: "none" },
    ...known.keys());
  const axis = make("svg:g", { class: "axis" });
  const text = (x, y, words, kind = "") => make("svg:text", { x, y, class: kind }, words);
  const names = rows.flatMap(({ device, busy }, i) => [text(0, ROW * i + 23, device),
    text(0, ROW * i + 38, `${Math.round(100 * busy)} % busy`, "busy")]);
  const about = { height: high + 44, tabindex: 0, role: "application", "aria-label": HELP };
  const chart = make("svg:svg", about, axis, plot, ...names), range = make("span");
  const said = make("p", { role: "status" }, "Point at a block.");
  let now = null; // the block or copy that is said

  function show(start, wanted) {
    length = within(wanted, LEAST, step.length);
    from = within(start, 0, step.length - length);
    room = chart.parentNode.clientWidth - LEFT - RIGHT;
    chart.setAttribute("width", LEFT + room + RIGHT);
    plot.setAttribute("width", room);
    plot.setAttribute("viewBox", `${from} 0 ${length} ${rows.length}`);
    range.textContent = `${ms(from)} to ${ms(from + length)} of ${ms(step.length)}`;
    const most = length * 80 / room, ten = 10 ** Math.floor(Math.log10(most)); // between two marks
    const every = ten * [1, 2, 5, 10].find(times => times * ten >= most);
    const digits = Math.max(0, -Math.floor(Math.log10(every) + 1e-9)), marks = [];
    for (let k = Math.ceil(from / every - 1e-9); k * every <= from + length * (1 + 1e-9); k++) {
      const x = LEFT + (k * every - from) / length * room;
      marks.push(make("svg:line", { x1: x, x2: x, y1: 0, y2: high }),
        text(x, high + 16, (k * every).toFixed(digits)));
    }
    axis.replaceChildren(...marks, text(LEFT + room / 2, high + 36, "time in the step, ms"));
  }
  const zoom = (times, at = 0.5) => { // at: the share of the width that stays where it is
    const next = within(length * times, LEAST, step.length);
    show(from + (length - next) * at, next);
  };
  const move = share => show(from + share * length, length);
  function say(each) {
    now?.drawn.classList.remove("said");
    each.drawn.classList.add("said");
    said.textContent = (now = each).text;
  }
  function walk(by) { // to the next block that is wide enough to be seen
    const seen = each => each.end > from && each.start < from + length;
    let i = blocks.indexOf(now);
    if (i < 0 || !seen(now)) i = blocks[by > 0 ? "findIndex" : "findLastIndex"](seen) - by;
    do i += by; while (blocks[i] && blocks[i].end - blocks[i].start < length / 200);
    if (blocks[i]) say(blocks[i]);
    if (blocks[i] && !seen(now)) show((now.start + now.end - length) / 2, length);
  }
  const KEYS = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
    0: () => show(0, step.length), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25),
    ArrowDown: () => walk(1), ArrowUp: () => walk(-1) };
  const BUTTONS = { "Zoom in": "+", "Zoom out": "-", Earlier: "ArrowLeft", Later: "ArrowRight",
    "Whole step": "0" };
  chart.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  const place = event => event.clientX - chart.getBoundingClientRect().left - LEFT;
  chart.addEventListener("wheel", event => { // a page has to scroll past: once clicked, or pinched
    if (!event.ctrlKey && document.activeElement !== chart) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / room);
    else zoom(2 ** (event.deltaY / (event.ctrlKey ? 80 : 200)), place(event) / room);
  }, { passive: false });
  // Each finger, or the button of a mouse, holds the moment on which it was put.
  const hold = () => fingers.forEach(one => { one.at = from + one.x / room * length; });
  chart.addEventListener("pointerdown", event =>
    hold(fingers.set(event.pointerId, { x: place(event) })));
  chart.addEventListener("pointermove", event => {
    if (!fingers.has(event.pointerId)) return;
    fingers.get(event.pointerId).x = place(event);
    const [one, two] = fingers.values();
    const each = two ? (one.at - two.at) / (one.x - two.x) : length / room; // ms a pixel
    if (each > 0 && each < Infinity) show(one.at - one.x * each, each * room);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"])
    chart.addEventListener(end, event => { fingers.delete(event.pointerId); hold(); });
  plot.addEventListener("pointerover", event => {
    if (known.has(event.target) && fingers.size < 1) say(known.get(event.target));
  });
  const buttons = Object.keys(BUTTONS).map(words => make("button", { type: "button" }, words));
  for (const each of buttons) each.onclick = KEYS[BUTTONS[each.textContent]];
  still.replaceWith(make("div", { class: "timeline" },
    make("div", { class: "buttons" }, ...buttons, range), make("div", {}, chart), said,
    make("p", { class: "corner" }, step.corner)));
  addEventListener("resize", () => show(from, length));
  KEYS[0]();
}
for (const stored of document.querySelectorAll("script.trace"))
  draw(JSON.parse(stored.textContent), stored.previousElementSibling);
})();
