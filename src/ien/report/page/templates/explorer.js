"use strict";
// The explorer: draws what the page's data block holds for the chosen image, layer, models and element.

const data = JSON.parse(document.getElementById("explorer-data").textContent);
const find = (id) => document.getElementById(id);
const state = { image: 0, layer: "", sweep: 0, index: 0, left: 0, right: data.runs.length - 1 };
// "run/image/layer" -> maps, each all its frames as bytes; "run/image" -> masks; null while they are decoded
const decoded = new Map();
const ROUNDING = 1e-8;  // errors below it are those of rounding
const LEAST_TOP = 0.1;  // the axis of errors goes at least this far, so that rounding is drawn at 0

/** A new element with these properties and children. */
function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// --- numbers

function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size > 0 && size < ROUNDING) return "≈ 0";
  if (size > 0 && size < 1e-5) return "< 0.00001";
  return String(Number(value.toPrecision(2)));  // 0.00048
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function sweep() { return data.sweeps[state.sweep]; }

/** The place of the current element among all of them. */
function element() { return sweep().start + state.index; }

/** The place of the original image among all elements. */
function identity() { return sweep().start + sweep().values.indexOf(sweep().kind === "rotation" ? 0 : 1); }

function elementName(kind, value) {
  return kind === "rotation" ? `${value}°` : `×${Number(value.toPrecision(4))}`;
}

// --- geometry: a point (x right, y up) is moved by the element's matrix

function matrixOf(kind, value, inverse) {
  if (kind === "scale") {
    const factor = inverse ? 1 / value : value;
    return [factor, 0, 0, factor];
  }
  const angle = (inverse ? -value : value) * Math.PI / 180;
  const exact = (number) => Math.round(number * 1e15) / 1e15;  // quarter turns then hit the pixels
  const cos = exact(Math.cos(angle)), sin = exact(Math.sin(angle));
  return [cos, -sin, sin, cos];
}

/** Read a map at the moved place of every pixel, bilinearly: weighted sums, and the weight found in the map. */
function resample(pixels, height, width, [a, b, c, d]) {
  const values = new Float32Array(height * width), weights = new Float32Array(height * width);
  const middleY = (height - 1) / 2, middleX = (width - 1) / 2;
  for (let row = 0, i = 0; row < height; row++) {
    for (let column = 0; column < width; column++, i++) {
      const x = column - middleX, y = middleY - row;
      const sourceX = middleX + a * x + b * y, sourceY = middleY - (c * x + d * y);
      const left = Math.floor(sourceX), top = Math.floor(sourceY);
      for (const r of [top, top + 1]) {
        for (const k of [left, left + 1]) {
          const weight = (1 - Math.abs(sourceX - k)) * (1 - Math.abs(sourceY - r));
          if (weight > 0 && r >= 0 && r < height && k >= 0 && k < width) {
            values[i] += weight * pixels[r * width + k];
            weights[i] += weight;
          }
        }
      }
    }
  }
  return { values, weights };
}

// --- bytes

function bytesOf(text) { return Uint8Array.from(atob(text), (character) => character.charCodeAt(0)); }

/** The frames of a map: a zlib stream of the differences from one to the next. */
async function unpack(text, frame) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const frames = new Uint8Array(await new Response(stream).arrayBuffer());
  for (let i = frame; i < frames.length; i++) frames[i] += frames[i - frame];
  return frames;
}

/** The decoded masks of a model for the image under all elements, or null for now. */
function masksOf(run) {
  const key = `${run}/${state.image}`, { size: [height, width], frames } = data.runs[run].images[state.image].mask;
  return decodedAs(key, () => unpack(frames, height * width));
}

/** The decoded maps of a layer, or null for now: the page is drawn again when they are there. */
function framesOf(run, layer) {
  const [height, width] = data.runs[run].layers[layer].stored;
  const packed = data.runs[run].images[state.image].frames[layer];
  const unpackAll = () => Promise.all(packed.map((text) => unpack(text, height * width)));
  return decodedAs(`${run}/${state.image}/${layer}`, unpackAll);
}

function decodedAs(key, unpacking) {
  if (!decoded.has(key)) {
    decoded.set(key, null);
    unpacking()
      .then((frames) => { decoded.set(key, frames); draw(); })
      .catch((error) => complain(`The maps could not be unpacked (${error.message}).`));
  }
  return decoded.get(key);
}

// --- pictures

const STOPS = [
  [24, 16, 58], [59, 47, 128], [44, 94, 150], [33, 138, 141], [66, 178, 116], [158, 211, 62], [253, 231, 37],
];
const COLOURS = Array.from({ length: 256 }, (_, i) => {
  const place = i / 255 * (STOPS.length - 1), low = Math.min(Math.floor(place), STOPS.length - 2);
  return STOPS[low].map((value, k) => Math.round(value + (place - low) * (STOPS[low + 1][k] - value)));
});

function paint(canvas, height, width, colourOf) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const image = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) image.data.set(colourOf(i), 4 * i);
  context.putImageData(image, 0, 0);
}

function paintMap(canvas, pixels, height, width) {
  paint(canvas, height, width, (i) => [...COLOURS[pixels[i]], 255]);
}

/** The map rotated back; transparent where it shows what left the frame. */
function paintAligned(canvas, pixels, height, width, matrix) {
  const { values, weights } = resample(pixels, height, width, matrix);
  paint(canvas, height, width, (i) => {
    const colour = weights[i] > 0 ? COLOURS[Math.min(255, Math.round(values[i] / weights[i]))] : COLOURS[0];
    return [...colour, Math.round(255 * weights[i])];
  });
}

// a byte for the class of each pixel: the background, and colours that colour-blind readers can tell apart
const CLASSES = [
  [24, 16, 58], [230, 159, 0], [86, 180, 233], [0, 158, 115], [204, 121, 167], [213, 94, 0], [0, 114, 178], [240, 228, 66],
];
const UNKNOWN = 255;

function colourOfClass(index) {
  if (index === UNKNOWN) return [127, 127, 127, 255];
  return [...(index === 0 ? CLASSES[0] : CLASSES[1 + (index - 1) % (CLASSES.length - 1)]), 255];
}

/** Read a mask at the moved place of every pixel, the nearest one; transparent where it shows what left the frame. */
function paintMask(canvas, pixels, height, width, [a, b, c, d]) {
  const middleY = (height - 1) / 2, middleX = (width - 1) / 2;
  paint(canvas, height, width, (i) => {
    const x = i % width - middleX, y = middleY - Math.floor(i / width);
    const column = Math.round(middleX + a * x + b * y), row = Math.round(middleY - (c * x + d * y));
    const inside = row >= 0 && row < height && column >= 0 && column < width;
    return inside ? colourOfClass(pixels[row * width + column]) : [0, 0, 0, 0];
  });
}

function paintImage(canvas, image, matrix) {
  const [channels, height, width] = image.size, size = height * width;
  const all = image.bytes ??= bytesOf(image.pixels);
  const planes = Array.from({ length: channels }, (_, c) =>
    resample(all.subarray(c * size, (c + 1) * size), height, width, matrix).values);
  const [red, green, blue] = channels === 3 ? planes : [planes[0], planes[0], planes[0]];
  paint(canvas, height, width, (i) => [red[i], green[i], blue[i], 255].map(Math.round));
}

// --- the error curve

const BOX = { left: 44, right: 10, top: 14, bottom: 20 };  // around the curve, in pixels

function svgElement(name, attributes, text) {
  const made = document.createElementNS(find("curve").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Along the slider and the curve: degrees, or the logarithm of a factor, so that 1 is in the middle. */
function across(value) { return sweep().kind === "rotation" ? value : Math.log(value); }

/** A step of 1, 2 or 5 times a power of ten that divides the way to a number into at most four. */
function niceStep(highest) {
  const power = 10 ** Math.floor(Math.log10(highest / 4));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => 4 * step >= highest);
}

/** Where values and errors lie in the curve's picture; errors begin at 0. */
function axesOf(svg, known) {
  const width = svg.clientWidth || 600, height = svg.clientHeight || 190;
  const left = BOX.left, right = width - BOX.right, top = BOX.top, bottom = height - BOX.bottom;
  const highest = Math.max(LEAST_TOP, ...known), step = niceStep(highest), high = step * Math.ceil(highest / step);
  const [first, last] = endsOf();
  const x = (value) => left + (across(value) - first) / (last - first) * (right - left);
  const y = (error) => bottom - error / high * (bottom - top);
  return { width, height, left, right, top, bottom, step, high, x, y };
}

/** Where the curve begins and ends. */
function endsOf() {
  const { kind, values } = sweep();
  return kind === "rotation" ? [0, 360] : [across(values[0]), across(values[values.length - 1])];
}

function drawGrid(svg, { height, left, right, top, bottom, step, high, x, y }) {
  const line = (x1, y1, x2, y2) => svg.append(svgElement("line", { class: "grid", x1, y1, x2, y2 }));
  for (let k = 0; k <= Math.round(high / step); k++) {
    const place = y(k * step), text = String(Number((k * step).toPrecision(2)));
    line(left, place, right, place);
    svg.append(svgElement("text", { x: left - 6, y: place + 4, "text-anchor": "end" }, text));
  }
  const { kind, values, marks } = sweep(), named = [];
  const last = kind === "rotation" ? 360 : values[values.length - 1];
  for (const value of marks) line(x(value), top, x(value), bottom);
  for (const value of kind === "rotation" ? [0, 90, 180, 270, 360] : [1, values[0], last, ...marks]) {
    if (named.some((place) => Math.abs(place - x(value)) < 40)) continue;  // no room
    named.push(x(value));
    const text = elementName(kind, value), anchor = value === last ? "end" : "middle";
    svg.append(svgElement("text", { x: x(value), y: height - 5, "text-anchor": anchor }, text));
  }
}

/** One model's errors, which end at 360° as they begin at 0°; a point without neighbours is a dot. */
function drawLine(svg, side, errors, { x, y }) {
  const { kind, start, values } = sweep();
  const points = values.map((value, i) => [value, errors[start + i]]);
  if (kind === "rotation") points.push([360, errors[start]]);
  const known = (i) => i in points && points[i][1] !== null;
  let path = "";
  points.forEach(([value, error], i) => {
    if (!known(i)) return;
    const place = [x(value), y(error)];
    path += `${known(i - 1) ? "L" : "M"}${place.map((p) => p.toFixed(1)).join(" ")}`;
    if (!known(i - 1) && !known(i + 1)) drawPoint(svg, side, ...place, 3);
  });
  svg.append(svgElement("path", { class: `line ${side}`, d: path }));
}

/** Marks along the top where a model predicts another class than for the original image. */
function drawChanges(svg, side, { x, top }) {
  if (data.kind !== "classes") return;
  const { start, values } = sweep(), { predicted } = data.runs[state[side]].images[state.image];
  const y = side === "left" ? top - 7 : top - 3;
  values.forEach((value, i) => {
    if (predicted[start + i] === predicted[identity()]) return;
    svg.append(svgElement("rect", { class: `change ${side}`, x: x(value) - 3, y, width: 6, height: 3 }));
  });
}

function drawPoint(svg, side, cx, cy, r) {
  svg.append(svgElement("circle", { class: `point ${side}`, cx, cy, r }));
}

function drawCurve() {
  const svg = find("curve"), { start, values } = sweep();
  const lines = sides().map((side) => [side, errorsOf(side)]).filter(([, errors]) => errors);
  const known = lines.flatMap(([, errors]) => errors.slice(start, start + values.length)).filter((e) => e !== null);
  const axes = axesOf(svg, known);
  svg.setAttribute("viewBox", `0 0 ${axes.width} ${axes.height}`);
  svg.replaceChildren();
  drawGrid(svg, axes);
  const here = axes.x(find("slider").value === "360" ? 360 : values[state.index]);
  svg.append(svgElement("line", { class: "now", x1: here, x2: here, y1: axes.top, y2: axes.bottom }));
  for (const [side, errors] of lines) {
    drawLine(svg, side, errors, axes);
    drawChanges(svg, side, axes);
    if (errors[element()] !== null) drawPoint(svg, side, here, axes.y(errors[element()]), 5);
  }
}

// --- one model

function sides() { return data.runs.length > 1 ? ["left", "right"] : ["left"]; }

function layerOf(side) {
  return data.runs[state[side]].layers.findIndex((layer) => layer.name === state.layer);
}

function errorsOf(side) { return data.runs[state[side]].images[state.image].errors[layerOf(side)]; }

function part(side, name) { return document.querySelector(`.panel.${side} .${name}`); }

function drawNumbers(side) {
  const run = data.runs[state[side]], seen = run.images[state.image], at = element();
  part(side, "error").textContent = shortNumber((errorsOf(side) || [])[at]);
  document.querySelector(`.key.${side}`).textContent = run.name;
  document.documentElement.style.setProperty(`--${side}`, run.colour);
  if (data.kind === "classes") { drawPrediction(side, seen, at); return; }
  const changed = seen.changed[at], share = data.kind === "pixels" && changed !== null;
  part(side, "changed").textContent = share ? percent(changed) : shortNumber(changed);
  if (seen.dice) part(side, "dice").textContent = seen.dice[at] === null ? "–" : seen.dice[at].toFixed(3);
}

/** What a model that segments predicts, and the same moved back: if it is equivariant, that stands still. */
function drawMasks(side) {
  if (data.kind !== "pixels") return;
  const run = data.runs[state[side]], { size: [height, width] } = run.images[state.image].mask;
  const frames = masksOf(state[side]), { kind, values } = sweep(), value = values[state.index];
  if (!frames) return;
  const pixels = frames.subarray(element() * height * width, (element() + 1) * height * width);
  const name = `Predicted mask of ${run.name}, ${elementName(kind, value)}`;
  paintMask(part(side, "mask"), pixels, height, width, [1, 0, 0, 1]);
  paintMask(part(side, "mask-back"), pixels, height, width, matrixOf(kind, value));
  part(side, "mask").setAttribute("aria-label", name);
  part(side, "mask-back").setAttribute("aria-label", `${name}, moved back`);
}

function drawTruth(image, matrix, shown) {
  if (!image.mask) return;
  const [height, width] = image.mask.size;
  paintMask(find("truth"), image.mask.bytes ??= bytesOf(image.mask.pixels), height, width, matrix);
  find("truth").setAttribute("aria-label", `True mask of ${imageName(image)}, at ${shown}`);
}

/** The predicted class: wrong if it is not the label or, without one, not that of the original image. */
function drawPrediction(side, seen, at) {
  const label = data.images[state.image].label, truth = label ?? seen.predicted[identity()];
  const predicted = part(side, "predicted"), wrong = seen.predicted[at] !== truth;
  predicted.textContent = seen.predicted[at];
  predicted.classList.toggle("wrong", wrong);
  if (wrong) predicted.append(make("small", { textContent: label === null ? ` was ${truth}` : ` not ${truth}` }));
  part(side, "confidence").textContent = percent(seen.confidence[at]);
  drawBars(part(side, "bars"), seen.probabilities[at], truth);
}

function drawBars(bars, probabilities, truth) {
  const classes = data.images[state.image].classes;
  bars.replaceChildren(...classes.map((name, i) => {
    const column = make("div", { className: "column" });
    column.style.setProperty("--p", probabilities[i]);
    const label = make("span", { textContent: name, className: name === truth ? "truth" : "" });
    return make("div", {}, column, label);
  }));
  bars.classList.toggle("long", Math.max(...classes) > 99);
  const shares = classes.map((name, i) => `${name} ${percent(probabilities[i])}`);
  bars.setAttribute("aria-label", `Probabilities: ${shares.join(", ")}`);
}

function drawMaps(side) {
  const run = data.runs[state[side]], index = layerOf(side), layer = run.layers[index];
  const { kind, values } = sweep(), back = kind === "rotation" ? "rotated back" : "scaled back";
  const maps = part(side, "maps"), remark = part(side, "remark");
  maps.hidden = !layer;
  remark.textContent = layer ? remarkOn(side, run, layer) : `This network has no layer ${state.layer}.`;
  const frames = layer && framesOf(state[side], index);
  if (!frames) return;
  const rows = ["returned", "aligned"].map((row) => maps.querySelector(`.${row}`));
  rows[1].previousSibling.textContent = back[0].toUpperCase() + back.slice(1);
  for (const row of rows) {
    while (row.children.length > frames.length) row.lastChild.remove();
    while (row.children.length < frames.length) row.append(make("canvas", { role: "img" }));
  }
  const [height, width] = layer.stored, value = values[state.index], matrix = matrixOf(kind, value);
  frames.forEach((bytes, k) => {
    const pixels = bytes.subarray(element() * height * width, (element() + 1) * height * width);
    const name = `${layer.name} of ${run.name}, map ${layer.maps[k]}, ${elementName(kind, value)}`;
    paintMap(rows[0].children[k], pixels, height, width);
    paintAligned(rows[1].children[k], pixels, height, width, matrix);
    rows[0].children[k].setAttribute("aria-label", name);
    rows[1].children[k].setAttribute("aria-label", `${name}, ${back}`);
  });
}

function remarkOn(side, run, layer) {
  const which = layer.maps.length < layer.of ? `, the ${layer.maps.length} that vary most` : "";
  const parts = [`Maps ${layer.maps.join(", ")} of ${layer.of}${which}, one for each feature group: the maximum over its channels; ${layer.size.join("×")} pixels.`];
  const error = errorsOf(side)[element()];
  if (error === null) parts.push("At this element no pixel of so small a map can be compared.");
  if (run.averaged) parts.push("One pass: its test accuracy averages over the group.");
  return parts.join(" ");
}

// --- the whole

function draw() {
  const { kind, values } = sweep(), image = data.images[state.image], value = values[state.index];
  const shown = elementName(kind, kind === "rotation" ? Number(find("slider").value) : value);
  paintImage(find("input"), image, matrixOf(kind, value, true));
  find("input").setAttribute("aria-label", `${imageName(image)}, at ${shown}`);
  drawTruth(image, matrixOf(kind, value, true), shown);
  find("label").textContent = image.label ?? image.name;
  find("curve-layer").textContent = state.layer;
  find("position").textContent = shown;
  find("slider").setAttribute("aria-valuetext", shown);
  for (const side of sides()) { drawNumbers(side); drawMasks(side); drawMaps(side); }
  drawCurve();
}

function imageName(image) {
  return image.label === null ? `Image ${image.name}` : `Test image ${image.index}, label ${image.label}`;
}

/** The slider's value: degrees, or the place of a factor. */
function moveTo(position) {
  find("slider").value = position;
  const moved = Number(find("slider").value), count = sweep().values.length;
  state.index = sweep().kind === "rotation" ? Math.round(moved / 360 * count) % count : moved;
  draw();
}

function positionOf(value) { return sweep().kind === "rotation" ? value : sweep().values.indexOf(value); }

function chooseSweep(index) {
  state.sweep = index;
  const { kind, values, marks } = sweep(), rotates = kind === "rotation";
  const [max, step] = rotates ? [360, 360 / values.length] : [values.length - 1, 1];
  Object.assign(find("slider"), { min: 0, max, step });
  find("slider-name").textContent = rotates ? "Angle" : "Scale";
  find("marks").replaceChildren(...marks.map((value) => make("option", { value: positionOf(value) })));
  find("snaps").replaceChildren(...marks.map((value) => {
    const button = make("button", { type: "button", textContent: elementName(kind, value) });
    button.addEventListener("click", () => { stop(); moveTo(positionOf(value)); });
    return button;
  }));
  moveTo(positionOf(rotates ? 0 : 1));
}

/** Begin where the prediction of the first image changes, if it does. */
function openOnChange() {
  const { opening } = data.images[0];
  if (opening !== null) moveTo(positionOf(sweep().values[opening]));
}

let timer = null, direction = 1;

function stop() {
  clearInterval(timer);
  timer = null;
  find("play").textContent = "Play";
  find("play").setAttribute("aria-pressed", "false");
}

function play() {
  if (timer !== null) { stop(); return; }
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;  // from stop to stop, without motion
  timer = setInterval(() => (calm ? hop() : step()), calm ? 1500 : 80);
  find("play").textContent = "Pause";
  find("play").setAttribute("aria-pressed", "true");
}

function hop() {
  const places = sweep().marks.map(positionOf), now = Number(find("slider").value);
  moveTo(places.find((place) => place > now) ?? places[0]);
}

function step() {
  const slider = find("slider"), now = Number(slider.value), end = Number(slider.max), by = Number(slider.step);
  if (sweep().kind === "rotation") { moveTo(now + by >= end ? 0 : now + by); return; }
  if (now + direction * by < 0 || now + direction * by > end) direction = -direction;
  moveTo(now + direction * by);
}

// --- the view as a picture

const PICTURE = { width: 1200, margin: 40, input: 240, map: 120, gap: 10 };

/** The curve as an image: its colours come from the page's style, which a picture of its own does not have. */
async function curveImage() {
  const svg = find("curve"), copy = svg.cloneNode(true);
  const originals = [...svg.querySelectorAll("*")], copies = [...copy.querySelectorAll("*")];
  originals.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-family"]) {
      copies[i].style.setProperty(name, style.getPropertyValue(name));
    }
  });
  copy.setAttribute("width", svg.clientWidth);
  copy.setAttribute("height", svg.clientHeight);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  return image;
}

/** The input, the curve and the maps of both models on one canvas. */
async function viewPicture() {
  const { width, margin, input, map, gap } = PICTURE, style = getComputedStyle(document.body);
  const names = { masks: "predicted mask, and moved back", returned: `maps of ${state.layer}`, aligned: "the same, moved back" };
  if (data.kind !== "pixels") delete names.masks;
  const height = Object.keys(names).length * (map + gap) + 74;  // of one model
  const canvas = make("canvas", { width, height: margin + 46 + input + 30 + sides().length * height + margin });
  const context = canvas.getContext("2d");
  const write = (text, x, y, size, colour = "--ink", weight = 400) => {
    context.font = `${weight} ${size}px system-ui, sans-serif`;
    context.fillStyle = style.getPropertyValue(colour) || colour;
    context.fillText(text, x, y);
  };
  context.fillStyle = style.getPropertyValue("--card");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;  // pixels stay pixels
  write(`${imageName(data.images[state.image])} at ${find("position").textContent}`, margin, margin + 24, 28, "--ink", 600);
  let y = margin + 46;
  context.drawImage(find("input"), margin, y, input, input);
  const curve = await curveImage(), room = width - input - 30 - 2 * margin;
  const scale = Math.min(room / curve.width, input / curve.height);  // as wide as there is room, not stretched
  context.drawImage(curve, margin + input + 30, y, scale * curve.width, scale * curve.height);
  y += input + 30;
  for (const side of sides()) {
    const run = data.runs[state[side]];
    write(run.name, margin, y + 28, 24, run.colour, 600);
    write(sayingOf(side), margin, y + 58, 20, "--muted");
    y += 74;
    for (const [row, name] of Object.entries(names)) {
      const canvases = [...part(side, row).children];
      canvases.forEach((one, k) => context.drawImage(one, margin + k * (map + gap), y, map, map));
      write(name, margin + canvases.length * (map + gap) + 14, y + map / 2 + 6, 20, "--muted");
      y += map + gap;
    }
  }
  return canvas;
}

/** The numbers of a model in one line. */
function sayingOf(side) {
  const texts = [...document.querySelectorAll(`.panel.${side} .numbers > div`)];
  return texts.map((one) => `${one.querySelector("dt").textContent} ${one.querySelector("dd").textContent}`).join(" · ");
}

async function saveView() {
  stop();
  try {
    const canvas = await viewPicture();
    const name = `${imageName(data.images[state.image])} at ${find("position").textContent}`;
    const link = make("a", { download: `${name.replace(/[^\w.°-]+/g, "-")}.png`, href: canvas.toDataURL("image/png") });
    link.click();
  } catch (error) {
    complain(`The picture could not be made (${error.message}).`);
  }
}

// --- setting up

function fillChoices() {
  data.images.forEach((image, i) => {
    const canvas = make("canvas");
    const input = make("input", { type: "radio", name: "image", value: i, checked: i === 0 });
    input.setAttribute("aria-label", imageName(image));
    input.addEventListener("change", () => { state.image = i; draw(); });
    paintImage(canvas, image, [1, 0, 0, 1]);
    document.querySelector(".thumbnails").append(make("label", {}, input, canvas));
  });
  const names = [...new Set(data.runs.flatMap((run) => run.layers.map((layer) => layer.name)))];
  find("layer").append(...names.map((name) => make("option", { value: name, textContent: name })));
  state.layer = names[0];
  find("layer").addEventListener("change", (event) => { state.layer = event.target.value; draw(); });
}

function fillPanels() {
  if (data.runs.length === 1) {
    document.querySelector(".panel.right").remove();
    document.querySelector(".key.right").remove();
    document.querySelector(".panels").classList.add("single");
  }
  for (const side of sides()) {
    const select = part(side, "run");
    select.append(...data.runs.map((run, i) => make("option", { value: i, textContent: run.name })));
    select.value = state[side];
    select.addEventListener("change", () => { state[side] = Number(select.value); draw(); });
    for (const [row, text] of [["returned", "The layer's maps"], ["aligned", "Rotated back"]]) {
      const name = make("p", { className: "row-name", textContent: text });
      part(side, "maps").append(name, make("div", { className: `row ${row}` }));
    }
  }
}

function followPointer() {
  const svg = find("curve");
  const move = (event) => {
    if (!(event.buttons & 1)) return;
    const place = svg.getBoundingClientRect(), { kind, values } = sweep();
    const share = (event.clientX - place.left - BOX.left) / (place.width - BOX.left - BOX.right);
    const [first, last] = endsOf(), there = first + Math.min(Math.max(share, 0), 1) * (last - first);
    stop();
    if (kind === "rotation") { moveTo(there); return; }
    const distances = values.map((value) => Math.abs(across(value) - there));
    moveTo(distances.indexOf(Math.min(...distances)));
  };
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointermove", move);
}

function complain(text) {
  find("trouble").textContent = text;
  find("trouble").hidden = false;
}

function themes() {
  const root = document.documentElement, button = find("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`);
  };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
  system.addEventListener("change", show);
  show();
}

function start() {
  themes();
  if (typeof DecompressionStream === "undefined") {
    complain("This browser is too old for the explorer: use Firefox 113, Chrome 80, Safari 16.4 or later.");
    return;
  }
  find("explorer-body").hidden = false;
  fillChoices();
  fillPanels();
  find("slider").addEventListener("input", (event) => { stop(); moveTo(event.target.value); });
  find("play").addEventListener("click", play);
  find("save").addEventListener("click", saveView);
  for (const radio of document.querySelectorAll("input[name=sweep]")) {
    radio.addEventListener("change", () => { stop(); chooseSweep(Number(radio.value)); });
  }
  followPointer();
  new ResizeObserver(drawCurve).observe(find("curve"));
  chooseSweep(0);
  openOnChange();
}

start();
