// The form of docs/calculator.md: what memory.on_paper and scaling.ring compute, in a browser.
// tests/test_calculator.py compares the numbers with theirs.
"use strict";
(() => {
const KEPT_WHOLE = 5; // as in memory/paper.py
const LINKS = { // as in scaling/links.py: bytes a second, likely, low and high; seconds a message
  PCIE_3: ["PCIe 3.0 x16", 8e9, 5e9, 12e9, 5.7e-6],
  NVLINK_2: ["NVLink 2 (V100)", 120e9, 100e9, 150e9, 3.4e-6],
  NVLINK_3: ["NVLink 3 (A100)", 230e9, 200e9, 240e9, 3.4e-6],
  ETHERNET_10G: ["10 Gbit Ethernet", 1.19e9, 0.9e9, 1.25e9, 14e-6],
  ETHERNET_25G: ["25 Gbit Ethernet", 2.98e9, 2e9, 3.125e9, 14e-6],
  ETHERNET_100G: ["100 Gbit Ethernet", 7.5e9, 4e9, 12e9, 14e-6],
};
const BYTES = { // of a parameter: weights, gradients, and what the optimizer keeps
  float32: slots => [4, 4, 4 * slots],
  mixed: slots => [2, 2, 4 + 4 * slots],
};
const PARTS = ["weights", "gradients", "slots", "activations"];

function onPaper(given) {
  const { devices: n, activations, layers, between, pieces } = given;
  const [w, g, s] = BYTES[given.precision](given.slots).map(each => given.parameters * each);
  const ring = (n - 1) / n, mine = activations / n, ways = [];
  function add(name, write, weights, gradients, slots, kept, sends = 0, messages = 0,
      over = given.link) {
    const [, bandwidth, , , latency] = LINKS[over];
    ways.push({ name, write, weights, gradients, slots, activations: kept, sends,
      held: weights + gradients + slots + kept,
      seconds: sends / bandwidth + messages * latency });
  }
  const use = options => `fit.use(model, ${options})`;
  add("as it is", "", w, g, s, activations);
  if (given.precision === "float32")
    add("mixed_bfloat16", 'keras.config.set_dtype_policy("mixed_bfloat16")', w, g, s,
      activations / 2);
  if (pieces > 1) add(`${pieces} pieces`, use(`pieces=${pieces}`), w, 2 * g, s, activations / pieces);
  if (layers > 1) {
    const parts = Math.max(2, Math.round(Math.sqrt(layers)));
    add(`recompute in ${parts} parts`, use(`recompute=${parts}`), w, g, s,
      parts * between + activations / parts);
  }
  if (n > 1) {
    const once = 2 * (n - 1);
    add(`batch over ${n} devices`, use("plan"), w, g, s, mine, ring * 2 * g, once);
    add("ZeRO 1", "", w, g, s / n, mine, ring * (g + w), once);
    add("ZeRO 2", use('plan, state="owners"'), w, g / n, s / n, mine, ring * (g + w), once);
    add("ZeRO 3", "", w / n, g / n, s / n, mine, ring * (g + 2 * w),
      3 * Math.max(1, layers) * (n - 1));
    if (layers) {
      const sums = 4 * layers, whole = KEPT_WHOLE * layers * between;
      add("tensor parallel", use('plan, layers="auto"'), w / n, g / n, s / n,
        mine + ring * Math.min(activations, whole), sums * ring * 2 * between, sums * once);
      for (let rows = 1; rows <= n / 2; rows++) { // each of which has the model once, in stages
        const stages = n / rows, cuts = Math.min(2, stages - 1);
        if (rows > 1 && (n % rows || stages > layers)) continue;
        add(rows === 1 ? "pipeline" : `${rows} rows of ${stages} stages`,
          use(`plan, stages=${stages}`), w / stages, g / stages, s / stages, mine,
          cuts * between / rows + (rows - 1) / rows * 2 * g / stages, cuts + 2 * (rows - 1));
      }
    }
  }
  add("state on the host", use('plan, state="host"'), w, 0, 0, mine, w + g, 2, "PCIE_3");
  return ways;
}

// The share of computing in a step on n devices that share the batch: likely, lowest, highest.
function efficiency(given, n) {
  const [, ...speeds] = LINKS[given.link], latency = speeds.pop();
  const [, gradients] = BYTES[given.precision](given.slots);
  const computes = given.seconds * given.batch / n;
  return speeds.map(bandwidth => {
    const moves = 2 * (n - 1) / n * gradients * given.parameters / bandwidth;
    return computes / (computes + moves + 2 * (n - 1) * latency);
  });
}

// What people write behind a number, in any case.
const COUNTS = { k: 1e3, m: 1e6, b: 1e9, t: 1e12 };
const SIZES = { b: 1 };
"kmgt".split("").forEach((letter, i) => {
  SIZES[letter] = SIZES[`${letter}b`] = 1000 ** (i + 1);
  SIZES[`${letter}ib`] = 1024 ** (i + 1);
});
const mega = { units: SIZES, of: 1e6, least: 0 }; // without a unit it is of these

// name: what it is called, what it is at first, and its choices, or the number it has to be
const whole = (least, most = 1e15) => ({ whole: true, least, most });
const FIELDS = {
  parameters: ["Trainable parameters", "110,000,000", { units: COUNTS, of: 1, ...whole(1) }],
  slots: ["Optimizer", "2", { 2: "Adam, AdamW", 1: "SGD with momentum, Lion, RMSprop", 0: "SGD" }],
  precision: ["Precision", "float32", { float32: "float32", mixed: "mixed, as in the papers" }],
  batch: ["Batch of a step, examples", "32", whole(1)],
  activations: ["Activations of an example, MB", "700", mega],
  longer: ["Length of an example, times that of these MB", "1", { above: 0 }],
  squared: ["Of these MB, what grows by its square", "0", mega],
  layers: ["Transformer layers, or 0", "12", whole(0)],
  between: ["What a layer hands on, MB an example, or 0", "1.6", mega],
  pieces: ["Pieces that a batch is taken in", "4", whole(1)],
  devices: ["Devices", "2", whole(1, 1e6)],
  budget: ["Memory of a device, GB", "16", { units: SIZES, of: 1e9, above: 0 }],
  link: ["Link between devices", "PCIE_3",
    Object.fromEntries(Object.entries(LINKS).map(([key, [name]]) => [key, name]))],
  time: ["Milliseconds that a device needs for an example", "40", { above: 0 }],
};

class Wrong extends Error {
  constructor(name, text, rule) {
    super(`${FIELDS[name][0]}: ${JSON.stringify(text)} is ${rule}.`);
    this.field = name;
  }
}

function amount(text, units, of) { // "1,234", "7B" or "1.5 GiB" as a number; NaN if it is none
  const plain = text.trim().replace(/^\d{1,3}(,\d{3})+(?!\d)/, found => found.replaceAll(",", ""));
  const [, figures, unit] = plain.match(/^([\d.]+(?:e[+-]?\d+)?)\s*([a-z]*)$/i) ?? [];
  if (!unit) return Number(figures);
  return Number((figures * units[unit.toLowerCase()] / of).toPrecision(15)); // 1.1 * 1e6 is more
}

function read(name, text) {
  const kind = FIELDS[name][2];
  if (FIELDS[name][1] in kind) {
    if (!Object.hasOwn(kind, text)) throw new Wrong(name, text, "none of the choices");
    return name === "slots" ? Number(text) : text;
  }
  const { above = -Infinity, least = -Infinity, most = 1e15, units = {} } = kind;
  const number = amount(text, units, kind.of);
  if (!(number > above && number >= least && number <= most)
      || kind.whole && !Number.isInteger(number)) {
    const range = above === 0 ? "above 0" : `from ${least}` + (most < 1e15 ? ` to ${most}` : " on");
    throw new Wrong(name, text, `not a ${kind.whole ? "whole " : ""}number ${range}, `
      + `such as ${FIELDS[name][1]}${{ 1: " or 7B", 1e6: " or 1.2GB", 1e9: " or 80GB" }[kind.of] ?? ""}`);
  }
  return number;
}

function readAll(texts) {
  const given = {};
  for (const name in FIELDS) given[name] = read(name, texts[name]);
  if (Boolean(given.layers) !== Boolean(given.between))
    throw new Wrong("between", texts.between, `not possible with ${given.layers} layers: `
      + "give both, or 0 for both");
  if (given.pieces > given.batch)
    throw new Wrong("pieces", texts.pieces, `more than the ${given.batch} examples of a batch`);
  const { longer: t, squared } = given;
  if (squared > given.activations)
    throw new Wrong("squared", texts.squared, `more than the ${given.activations} MB of all`);
  given.activations = 1e6 * given.batch * t * (given.activations + squared * (t - 1));
  given.between *= 1e6 * given.batch * t;
  given.budget *= 1e9;
  given.seconds = given.time * t / 1e3;
  return given;
}

function readSummary(text) {
  const count = kind => {
    const found = text.match(new RegExp(`^\\W*${kind} params:\\s*([\\d.,]+[kMBT]?)`, "m"));
    return found && amount(found[1], COUNTS, 1);
  };
  return { trained: count("Trainable") ?? count("Total"), others: count("Non-trainable") ?? 0 };
}

function size(bytes) { // as _formatting.size_text
  let value = Math.round(bytes), unit = "B";
  for (const next of ["kB", "MB", "GB", "TB"]) {
    if (value < 999.5) break;
    [value, unit] = [value / 1000, next];
  }
  return `${unit === "B" ? value : three(value)} ${unit}`;
}
const three = number => Number(number.toPrecision(3)); // digits, as Python's .3g
const percent = share => `${three(100 * share)}\u00a0%`;

// An element with its attributes and what is in it; of SVG where the name begins with "svg:"
function make(tag, attributes = {}, ...inside) {
  const [, svg, name] = tag.match(/^(svg:)?(.*)$/);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...inside);
  return made;
}
const data = (value, text) => make("data", { value }, text);

function table(head, rows) {
  const line = (cells, tag) => make("tr", {}, ...cells.map(each => make(tag, {}, each)));
  return make("div", { class: "table-wrapper", tabindex: 0, role: "region",
    "aria-label": "numbers" }, make("table", { class: "docutils" },
    make("thead", {}, line(head, "th")),
    make("tbody", {}, ...rows.map(cells => line(cells, "td")))));
}

function lessonOf(name) { // from the page's own table, the row whose first cell is in the name
  const row = [...document.querySelectorAll("article table.docutils tbody tr")]
    .find(each => !box.contains(each) && name.includes(each.cells[0].textContent.trim()));
  return row.querySelector("a").getAttribute("href");
}

function drawHeld(ways, given) {
  const most = Math.max(...ways.map(way => way.held));
  const end = Math.max(most, Math.min(given.budget, 1.25 * most));
  const fits = way => way.held <= given.budget ? "fits" : "does not fit";
  const bars = ways.map(way => make("li", {},
    make("a", { href: lessonOf(way.name) }, way.name), `: ${size(way.held)}, `,
    make("span", { class: fits(way).replaceAll(" ", "-") }, fits(way)),
    ...way.write ? [make("code", {}, way.write)] : [],
    make("div", { class: "bar", "aria-hidden": "true" },
      ...PARTS.map(part => make("i", { class: part, style: `width: ${100 * way[part] / end}%` })),
      ...given.budget <= end ? [make("b", { style: `left: ${100 * given.budget / end}%` })] : [])));
  const legend = [...PARTS, "memory"].map(part => make("span", {}, make("i", { class: part }),
    { memory: "memory of a device", slots: "slots of the optimizer" }[part] ?? part));
  const numbers = table(["plan", "held", ...PARTS, "sends", "takes"], ways.map(way => [way.name,
    ...["held", ...PARTS, "sends"].map(part => data(way[part], way[part] ? size(way[part]) : "-")),
    data(way.seconds, way.seconds ? `${three(way.seconds)} s` : "-")]));
  return [make("div", { class: "paper" }, make("strong", {}, "Held on each device"),
    make("p", { class: "legend" }, ...legend), make("ul", {}, ...bars)),
    make("details", {}, make("summary", {}, "All numbers, and what each device sends in a step"),
      numbers)];
}

function drawEfficiency(given) {
  const counts = new Set([given.devices]), most = Math.max(8, 4 * given.devices);
  for (let n = 1; n <= most; n *= 2) counts.add(n);
  const points = [...counts].filter(n => n <= given.batch).sort((a, b) => a - b)
    .map(n => [n, ...efficiency(given, n)]);
  const [n, likely, low, high] = points.find(([n]) => n === given.devices) ?? [];
  const words = n === undefined
    ? `${given.devices} devices cannot share a batch of ${given.batch}: each needs an example.`
    : n === 1 ? "One device sends nothing."
    : `On ${n} devices a step with this batch is ${three(n * likely)} times as fast as on one. `
      + `The efficiency is ${percent(likely)}, or from ${percent(low)} to ${percent(high)} with `
      + "what the link may carry.";
  const wide = Math.max(260, Math.min(720, box.clientWidth - 32)), tall = 250;
  const ends = Math.log2(most);
  const x = n => 50 + (wide - 66) * Math.log2(n) / ends, y = share => 12 + 190 * (1 - share);
  const text = (at, up, anchor, said) =>
    make("svg:text", { x: at, y: up, "text-anchor": anchor }, said);
  const line = (list, k) => list.map(point => `${x(point[0])},${y(point[k])}`).join(" ");
  const grid = [0, 0.25, 0.5, 0.75, 1].flatMap(share => [
    make("svg:line", { x1: 50, x2: wide - 16, y1: y(share), y2: y(share), class: "grid" }),
    text(44, y(share) + 4, "end", `${100 * share} %`)]);
  const every = Math.ceil(ends / (wide / 48)); // so that numbers do not run into each other
  for (let k = 0; k <= ends; k += every) grid.push(text(x(2 ** k), 220, "middle", `${2 ** k}`));
  const band = `${line(points, 2)} ${line([...points].reverse(), 3)}`;
  const chart = make("svg:svg", { width: wide, height: tall, role: "img",
    "aria-label": `Efficiency against the number of devices. ${words}` }, ...grid,
    text(wide / 2, 242, "middle", "devices that share the batch"),
    make("svg:polygon", { points: band, class: "band" }),
    make("svg:polyline", { points: line(points, 1), class: "curve" }),
    ...n === undefined ? [] : [make("svg:circle", { cx: x(n), cy: y(likely), r: 5 })]);
  const numbers = table(["devices", "efficiency", "lowest", "highest"],
    points.map(([n, ...shares]) => [data(n, `${n}`),
      ...shares.map(each => data(each, percent(each)))]));
  return [make("div", { class: "paper" }, make("strong", {}, "Efficiency"),
    make("p", {}, words), chart),
    make("details", {}, make("summary", {}, "The numbers of the curve"), numbers)];
}

const box = document.getElementById("calculator-form"), inputs = {};
const said = make("p", { role: "status", id: "calculator-said" }), results = make("div");
const about = make("p", { role: "status" });
const summary = make("textarea", { rows: 3, id: "calculator-summary", spellcheck: "false" });

function texts() {
  return Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
}

function update() {
  const open = [...results.querySelectorAll("details")].map(each => each.open);
  for (const input of Object.values(inputs)) input.removeAttribute("aria-invalid");
  said.textContent = "";
  results.replaceChildren();
  try {
    const given = readAll(texts());
    results.append(...drawHeld(onPaper(given), given), ...drawEfficiency(given));
    results.querySelectorAll("details").forEach((each, i) => { each.open = open[i] ?? false; });
  } catch (wrong) {
    if (!(wrong instanceof Wrong)) throw wrong;
    said.textContent = wrong.message;
    inputs[wrong.field].setAttribute("aria-invalid", "true");
  }
}

function fromAddress() { // what is not in it is as at first; a place on this page changes nothing
  const state = new URLSearchParams(location.hash.slice(1));
  const here = Object.keys(FIELDS).some(name => state.has(name));
  if (here || !results.hasChildNodes())
    for (const name in FIELDS) inputs[name].value = state.get(name) ?? FIELDS[name][1];
  update();
}

function entered() {
  history.replaceState(null, "", `#${new URLSearchParams(texts())}`);
  update();
}

function pasted() {
  const { trained, others } = readSummary(summary.value);
  about.textContent = trained ? `${trained.toLocaleString("en")} trainable parameters are taken.`
    : trained === 0 ? "This summary has no parameters: build the model before you print it."
    : summary.value ? 'This text has no line with "Trainable params:" or "Total params:".' : "";
  if (trained && others) about.textContent += ` The ${others.toLocaleString("en")} others have no `
    + `gradients; each device holds ${size(4 * others)} more for them, in float32.`;
  if (!trained) return;
  inputs.parameters.value = trained.toLocaleString("en");
  entered();
}

const form = make("form", {});
for (const [name, [label, first, kind]] of Object.entries(FIELDS)) {
  inputs[name] = first in kind
    ? make("select", {}, ...Object.entries(kind).map(([value, text]) =>
      make("option", { value }, text)))
    : make("input", { autocomplete: "off", inputmode: kind.whole ? "numeric" : "decimal" });
  inputs[name].name = name;
  inputs[name].setAttribute("aria-describedby", said.id);
  form.append(make("label", {}, label, inputs[name]));
}
form.append(make("label", { class: "wide" }, "Or paste what model.summary() prints", summary));
form.addEventListener("submit", event => event.preventDefault());
form.addEventListener("input", event => event.target === summary ? pasted() : entered());
box.replaceChildren(form, about, said, results);
addEventListener("hashchange", fromAddress);
addEventListener("resize", update);
fromAddress();
})();
