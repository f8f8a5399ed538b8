// A network for handwritten digits of 8x8 pixels: see index.html.
import { load } from "./digits/index.js";

const SIDE = 8;
const pad = document.querySelector("#pad"), status = document.querySelector("#status");
const pixels = new Float32Array(SIDE * SIDE); // 0 to 1, row by row
const model = await load({
  progress: (received, total) => (status.textContent = `Loading ${Math.round((100 * received) / total)} %`),
});
const [input] = model.inputs, [output] = model.outputs;

function show() {
  const image = new ImageData(SIDE, SIDE);
  pixels.forEach((value, i) => image.data.set([0, 0, 0, 255 * value], 4 * i));
  pad.getContext("2d").putImageData(image, 0, 0);
  const start = performance.now();
  const scores = model.run({ [input.name]: { data: pixels, shape: [1, 1, SIDE, SIDE] } })[output.name].data;
  status.textContent = `${(performance.now() - start).toFixed(2)} ms`;
  document.querySelector("#scores").innerHTML = Array.from(scores, (p, digit) =>
    `<tr><td>${digit}<td><span class="bar" style="width:${200 * p}px"></span>`).join("");
  return scores;
}

pad.addEventListener("pointermove", (event) => {
  if (!event.buttons) return;
  const { left, top, width } = pad.getBoundingClientRect();
  const x = (event.clientX - left) / width * SIDE - 0.5, y = (event.clientY - top) / width * SIDE - 0.5;
  for (let i = 0; i < pixels.length; i++) {
    const distance = Math.hypot(i % SIDE - x, Math.floor(i / SIDE) - y);
    pixels[i] = Math.max(pixels[i], Math.min(1, 1.3 - distance));
  }
  show();
});
document.querySelector("#clear").addEventListener("click", () => { pixels.fill(0); show(); });

/** The ten probabilities of an image of 64 numbers, which is drawn. */
window.classify = (image) => { pixels.set(image); return Array.from(show()); };
show();
document.body.dataset.ready = "true";
