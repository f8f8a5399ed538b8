"use strict";

// the reader's own theme first, then the button
const root = document.documentElement;
root.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});

const all = (selector) => [...document.querySelectorAll(selector)];

// a click on anything of a row marks the row in the table and in all pictures, and scrolls each to it
function mark(row) {
  all(".on").forEach((node) => node.classList.remove("on"));
  all(`[data-row="${row}"]`).forEach((node) => {
    node.classList.add("on");
    if (node.tagName !== "TR" && !node.classList.contains("node")) return;
    const box = node.closest(".scroll");
    const a = node.getBoundingClientRect();
    const b = box.getBoundingClientRect();
    box.scrollBy(a.left - b.left - b.width / 2, a.top - b.top - b.height / 2);
  });
}
document.addEventListener("click", (event) => {
  const hit = event.target.closest("[data-row]");
  if (hit) mark(hit.dataset.row);
});

// a click on a column's head sorts by it, largest first, then smallest first
all("th").forEach((head) => head.addEventListener("click", () => {
  const column = head.cellIndex;
  const body = head.closest("table").tBodies[0];
  const down = head.dataset.order !== "down";
  head.dataset.order = down ? "down" : "up";
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const order = (p, q) => (key(p) < key(q) ? 1 : key(p) > key(q) ? -1 : 0) * (down ? 1 : -1);
  [...body.rows].sort(order).forEach((row) => body.append(row));
}));

document.getElementById("zoom")?.addEventListener("input", (event) => {
  all(".track").forEach((node) => { node.style.width = `${event.target.value}%`; });
});
