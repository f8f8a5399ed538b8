// Runs a model that Ingot compiled: places its memory, binds it to sizes, and calls its kernels.
//
//   plan + module + weights -> Model;  model.run({x}) -> {y}
//
// Memory: [module's stack and constants | weights | first state | what one set of sizes needs]. A size is an expression in
// postfix form over the plan's symbols, as `ingot.runtime.expr` defines it.

const ALIGN = 64, PAGE = 65536, RECORD = 4;
const UNSET = -(1n << 63n);
const ARRAYS = {
  f32: Float32Array, f64: Float64Array, i8: Int8Array, i16: Int16Array, u16: Uint16Array, f16: Uint16Array,
  bf16: Uint16Array, i32: Int32Array, u32: Uint32Array, i64: BigInt64Array, u64: BigUint64Array, i4: Int8Array,
  i2: Int8Array,
};
const arrayOf = (dtype) => ARRAYS[dtype] ?? Uint8Array; // of other types, which have a byte or less
const OPERATORS = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "//": (a, b) => Math.floor(a / b),
  "%": (a, b) => a - b * Math.floor(a / b), max: Math.max, min: Math.min,
};

const align = (n) => Math.ceil(n / ALIGN) * ALIGN;
const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

function evaluate(expr, values) {
  if (typeof expr === "number") return expr;
  const stack = [];
  for (const item of expr) {
    if (typeof item === "number") stack.push(item);
    else if (item in OPERATORS && !values.has(item)) {
      const right = stack.pop();
      stack.push(OPERATORS[item](stack.pop(), right));
    } else stack.push(values.get(item));
  }
  return stack[0];
}

// The bounds [min, max] of an expression whose symbols are within `spans`.
function span(expr, spans) {
  if (typeof expr === "number") return [expr, expr];
  const stack = [];
  for (const item of expr) {
    if (typeof item === "number") { stack.push([item, item]); continue; }
    if (!(item in OPERATORS)) { stack.push(spans.get(item)); continue; }
    let b = stack.pop();
    const a = stack.pop(), f = OPERATORS[item];
    if (item === "%") {
      const exact = a[0] === a[1] && b[0] === b[1] && b[0] > 0;
      stack.push(exact ? [f(a[0], b[0]), f(a[0], b[0])] : [0, Math.max(b[1] - 1, 0)]);
      continue;
    }
    if (item === "//") b = [Math.max(b[0], 1), Math.max(b[1], 1)];
    if (item === "-") b = [b[1], b[0]];
    const pairs = item === "*" || item === "//" ? [[0, 0], [0, 1], [1, 0], [1, 1]] : [[0, 0], [1, 1]];
    const ends = pairs.map(([i, j]) => f(a[i], b[j]));
    stack.push([Math.min(...ends), Math.max(...ends)]);
  }
  return stack[0];
}

// [symbol, a, b] if the expression is a * symbol + b with a > 0.
function linear(expr) {
  if (typeof expr === "number") return null;
  const names = new Set(expr.filter((item) => typeof item === "string" && !(item in OPERATORS)));
  if (names.size !== 1 || expr.some((item) => item in OPERATORS && !"+-*".includes(item))) return null;
  const [name] = names;
  const [b, ...rest] = [0, 1, 2, 3].map((value) => evaluate(expr, new Map([[name, value]])));
  const slope = rest[0] - b;
  return slope > 0 && rest[1] === b + 2 * slope && rest[2] === b + 3 * slope ? [name, slope, b] : null;
}

// Offsets such that requests [bytes, first step, last step] that are live together do not overlap, and the total size:
// the largest first, each into the smallest gap (Pisarchyk and Lee, 2020, algorithm 3).
function place(requests) {
  const offsets = requests.map(() => 0), placed = [];
  const order = requests.map((_, i) => i).filter((i) => requests[i][0] > 0);
  order.sort((i, j) => requests[j][0] - requests[i][0] || requests[i][1] - requests[j][1] || i - j);
  let total = 0;
  for (const i of order) {
    const [bytes, first, last] = requests[i], size = align(bytes);
    let end = 0, best = -1, gap = Infinity;
    for (const p of placed) {
      if (p.first > last || p.last < first) continue;
      if (p.offset - end >= size && p.offset - end < gap) { gap = p.offset - end; best = end; }
      end = Math.max(end, p.end);
    }
    const offset = (offsets[i] = best < 0 ? end : best);
    total = Math.max(total, offset + size);
    const at = placed.findIndex((p) => p.offset > offset);
    placed.splice(at < 0 ? placed.length : at, 0, { first, last, offset, end: offset + size });
  }
  return [offsets, total];
}

const spec = ([name, dtype, shape, elements]) => ({ name, dtype, shape, elements, width: arrayOf(dtype).BYTES_PER_ELEMENT });

/** A compiled model. `run` is synchronous and takes one call at a time. */
export class Model {
  #plan; #exports; #state; #weights; #free; #first; #bound = null;

  constructor(plan, exports, weights, free, first) {
    this.#plan = plan;
    this.#exports = exports;
    this.inputs = plan.inputs.map(spec);
    this.outputs = plan.outputs.map(spec);
    this.#state = plan.state.map(([s, copied]) => ({ ...spec(s), copied: copied !== "" }));
    this.#weights = weights;
    this.#first = first;
    this.#free = free;
  }

  /** Give the state its first values. */
  reset() {
    if (this.#bound) this.#firstState(this.#bound);
  }

  /** inputs: by name, typed arrays or {data, shape}. Returns {data, shape} of each output by name. */
  run(inputs) {
    const given = this.inputs.map((s) => tensor(s, inputs[s.name]));
    for (const name of Object.keys(inputs)) {
      if (!this.inputs.some((s) => s.name === name)) throw new TypeError(`no input ${name}: ${this.inputs.map((s) => s.name)}`);
    }
    const shapes = [...given.map((t) => t.shape), ...this.#state.map((s) => s.shape)];
    const elements = this.inputs.map((s, i) => (s.elements.length ? Array.from(given[i].data, Number) : []));
    const key = JSON.stringify([shapes, elements]);
    if (this.#bound?.key !== key) this.#bind(key, shapes, elements);
    const bound = this.#bound, memory = () => this.#exports.memory.buffer;
    given.forEach((t, i) => new (arrayOf(this.inputs[i].dtype))(memory(), bound.arguments[i], t.data.length).set(t.data));
    new BigInt64Array(memory(), bound.sizes, this.#plan.sizes.length).fill(UNSET);
    this.#exports.run(bound.table, this.#plan.steps.length, bound.bases, bound.scratch);
    const values = this.#computed(bound);
    const bytes = new Uint8Array(memory()), states = this.#state.length;
    this.#state.forEach((s, i) => {
      const to = bound.arguments[given.length + i], from = bound.results[i];
      if (s.copied) bytes.copyWithin(to, from, from + product(s.shape) * s.width);
    });
    return Object.fromEntries(this.outputs.map((s, i) => {
      const largest = bound.shapes[states + i], shape = s.shape.map((d) => evaluate(d, values));
      const all = new (arrayOf(s.dtype))(memory(), bound.results[states + i], product(largest));
      return [s.name, { data: crop(all, largest, shape), shape }];
    }));
  }

  #bind(key, shapes, elements) {
    const plan = this.#plan;
    const values = this.#symbols(shapes, elements), spans = new Map();
    for (const [name, value] of values) spans.set(name, [value, value]);
    for (const [name, lo, bound, hi] of plan.sizes) {
      const most = span(bound, spans)[1];
      spans.set(name, [Math.min(lo, 0), Math.max(0, hi === null ? most : Math.min(most, hi))]);
    }
    const most = (expr) => span(expr, spans)[1];
    const kept = this.#bound;
    let end = this.#free;
    const take = (bytes) => { const at = end; end = align(end + bytes); return at; };
    const specs = [...this.#state, ...this.outputs];
    const bound = { key, values, shapes: specs.map((s) => s.shape.map(most)) };
    const stateBytes = this.#state.map((s) => product(s.shape) * s.width);
    // the state comes first: it is kept when sizes change
    const state = stateBytes.map(take);
    const room = (s, shape) => take(product(shape) * s.width);
    bound.arguments = [...this.inputs.map((s, i) => room(s, shapes[i])), ...state];
    bound.results = specs.map((s, i) => (i < state.length && !s.copied ? state[i] : room(s, bound.shapes[i])));
    bound.sizes = take(8 * plan.sizes.length);
    const words = plan.steps.reduce((n, [, args, dims]) => n + 2 * args.length + dims.length, RECORD * plan.steps.length);
    bound.table = take(8 * words);
    const heads = [0, this.#weights, ...bound.arguments, ...bound.results, bound.sizes, bound.table];
    bound.bases = take(4 * heads.length);
    const { offsets, fills, bytes } = arena(plan.buffers, most);
    heads[0] = take(bytes);
    bound.scratch = take(plan.scratch_bytes);
    this.#bound = null; // if memory is short, the next call binds again
    this.#grow(end);
    const buffer = this.#exports.memory.buffer;
    new Uint32Array(buffer, bound.bases, heads.length).set(heads);
    for (const [offset, size, byte] of fills) new Uint8Array(buffer, heads[0] + offset, size).fill(byte);
    this.#fillTable(new BigInt64Array(buffer, bound.table, words), bound, offsets, most, heads.length);
    this.#bound = bound;
    if (!kept) this.#firstState(bound);
  }

  #fillTable(table, bound, offsets, most, bases) {
    const plan = this.#plan, inputs = plan.inputs.length + plan.state.length;
    const kernels = Object.values(plan.code)[0][1];
    const byId = new Map(plan.buffers.map((b) => [b[0], b]));
    const locate = (id) => {
      const [, kind, , , , offset, index, , , alias] = byId.get(id);
      if (alias !== null) { const [base, at] = locate(alias[0]); return [base, at + most(alias[1])]; }
      if (kind === "arena") return [0, offsets.get(id)];
      if (kind === "weight") return [1, offset];
      if (kind === "input") return [2 + index, 0];
      if (kind === "output") return [2 + inputs + index, 0];
      return kind === "size" ? [bases - 2, 8 * index] : [bases - 1, 0];
    };
    let at = RECORD * plan.steps.length;
    plan.steps.forEach(([kernel, args, dims, chunks, , rounds, target], i) => {
      const record = [0, bound.table + 8 * at, target, args.length ? -1 : -2];
      if (target === null) record.splice(0, 4, kernels[kernel], record[1], most(chunks), Math.max(most(rounds), 0));
      table.set(record.map(BigInt), RECORD * i);
      for (const [id, offset] of args) {
        const [base, place] = locate(id);
        table[at++] = BigInt(base);
        table[at++] = BigInt(place + most(offset));
      }
      for (const dim of dims) table[at++] = BigInt(most(dim));
    });
  }

  #symbols(shapes, elements) {
    const values = new Map(), checks = [];
    [...this.inputs, ...this.#state].forEach((s, i) => {
      if (shapes[i].length !== s.shape.length) throw new RangeError(`input ${s.name}: ${s.shape.length} dims, got ${shapes[i]}`);
      s.shape.forEach((dim, axis) => checks.push([dim, shapes[i][axis], `input ${s.name}, axis ${axis}`]));
      s.elements.forEach((dim, at) => checks.push([dim, elements[i][at], `input ${s.name}, element ${at}`]));
    });
    for (const [dim, size] of checks) {
      const found = linear(dim);
      if (found && !values.has(found[0])) values.set(found[0], Math.floor((size - found[2]) / found[1]));
    }
    for (const [name, lo, hi] of this.#plan.symbols) {
      const value = values.get(name);
      if ((lo !== null && value < lo) || (hi !== null && value > hi)) throw new RangeError(`${name}: ${lo} to ${hi}, got ${value}`);
    }
    for (const [dim, size, where] of checks) {
      if (evaluate(dim, values) !== size) throw new RangeError(`${where}: ${evaluate(dim, values)} expected, got ${size}`);
    }
    this.#conditions(values);
    return values;
  }

  #conditions(values) {
    for (const condition of this.#plan.conditions) {
      const known = typeof condition === "number" || condition.every((x) => typeof x === "number" || x in OPERATORS || values.has(x));
      if (known && evaluate(condition, values) < 0) throw new RangeError(`the model does not take these sizes: ${condition} >= 0`);
    }
  }

  #computed(bound) {
    const plan = this.#plan, values = new Map(bound.values);
    if (!plan.sizes.length) return values;
    const sizes = new BigInt64Array(this.#exports.memory.buffer, bound.sizes, plan.sizes.length);
    plan.sizes.forEach(([name, lo, most, hi], i) => {
      if (sizes[i] === UNSET) return; // in a branch that was not taken
      const value = Number(sizes[i]), upper = Math.min(evaluate(most, values), hi ?? Infinity);
      if (value < lo || value > upper) throw new RangeError(`size ${name}: ${lo} to ${upper}, got ${value}`);
      values.set(name, value);
    });
    this.#conditions(values);
    return values;
  }

  #firstState(bound) {
    const bytes = new Uint8Array(this.#exports.memory.buffer);
    let from = this.#first;
    this.#state.forEach((s, i) => {
      const size = product(s.shape) * s.width;
      bytes.copyWithin(bound.arguments[this.inputs.length + i], from, from + size);
      from += size;
    });
  }

  #grow(end) {
    const missing = end - this.#exports.memory.buffer.byteLength;
    if (missing > 0) this.#exports.memory.grow(Math.ceil(missing / PAGE));
  }
}

function arena(buffers, most) {
  const plain = [], images = new Map(), offsets = new Map(), fills = [];
  for (const [id, kind, nbytes, first, last, , , halo, fill, alias] of buffers) {
    if (kind !== "arena" || alias !== null) continue;
    const request = [Math.max(0, most(nbytes)), first, last];
    const key = JSON.stringify([halo, fill, request[0]]);
    if (halo !== null && !images.has(key)) images.set(key, { fill, members: [] });
    (halo === null ? plain : images.get(key).members).push([id, request]);
  }
  const put = (members, start) => {
    const [places, size] = place(members.map(([, request]) => request));
    members.forEach(([id], i) => offsets.set(id, start + places[i]));
    return size;
  };
  let bytes = put(plain, 0);
  for (const { fill, members } of images.values()) {
    const size = put(members, bytes);
    fills.push([bytes, size, fill]);
    bytes += size;
  }
  return { offsets, fills, bytes };
}

function tensor(s, given) {
  const wanted = arrayOf(s.dtype);
  const data = given instanceof wanted ? given : given?.data;
  if (!(data instanceof wanted)) throw new TypeError(`input ${s.name}: ${wanted.name} or {data, shape} expected`);
  const shape = given === data ? s.shape : given.shape;
  if (shape.some((d) => typeof d !== "number")) throw new TypeError(`input ${s.name}: {data, shape} expected, as its sizes are open`);
  if (!shape.every((d) => Number.isSafeInteger(d) && d >= 0) || product(shape) !== data.length) {
    throw new RangeError(`input ${s.name}: ${shape} has ${product(shape)} elements, got ${data.length}`);
  }
  return { data, shape };
}

// A copy of the first elements along each axis.
function crop(data, largest, shape) {
  if (shape.every((d, i) => d === largest[i])) return data.slice();
  const out = new data.constructor(product(shape));
  const row = shape.at(-1), rows = row && out.length / row;
  for (let r = 0; r < rows; r++) {
    let left = r, at = 0, stride = largest.at(-1);
    for (let axis = shape.length - 2; axis >= 0; axis--) {
      at += (left % shape[axis]) * stride;
      left = Math.floor(left / shape[axis]);
      stride *= largest[axis];
    }
    out.set(data.subarray(at, at + row), r * row);
  }
  return out;
}

async function response(source) {
  if (source instanceof Response) return source;
  if (ArrayBuffer.isView(source) || source instanceof ArrayBuffer) return new Response(source);
  const url = new URL(source);
  if (url.protocol === "file:") return new Response(await (await import("node:fs/promises")).readFile(url));
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
  return answer;
}

/** Compile the module while it arrives and stream the weights into its memory. module, weights: URLs, responses or bytes. */
export async function open(plan, { module, weights }, progress = () => {}) {
  const [code, data] = await Promise.all([response(module), response(weights)]);
  const streamed = code.headers.get("content-type") === "application/wasm";
  const compiled = streamed ? await WebAssembly.compileStreaming(code) : await WebAssembly.compile(await code.arrayBuffer());
  const { exports } = await WebAssembly.instantiate(compiled);
  const start = align(exports.__heap_base.value), total = plan.weights_bytes + plan.state_bytes;
  const missing = start + total - exports.memory.buffer.byteLength;
  if (missing > 0) exports.memory.grow(Math.ceil(missing / PAGE));
  const memory = new Uint8Array(exports.memory.buffer);
  let received = 0;
  for (const reader = data.body?.getReader(); reader; ) {
    const { done, value } = await reader.read();
    if (done) break;
    if (received + value.length > total) throw new RangeError(`weights: ${total} bytes expected, got more`);
    memory.set(value, start + received);
    received += value.length;
    progress(received, total);
  }
  if (received !== total) throw new RangeError(`weights: ${total} bytes expected, got ${received}`);
  return new Model(plan, exports, start, align(start + total), start + plan.weights_bytes);
}
