// node wasm.mjs JOB.json: runs of a package and of onnxruntime-web by turns, on one thread; prints JSON.
//
// job: {package, model, ort, rounds, inputs: [{name, dtype, shape, base64}]} -> {ingot: [ms], ort: [ms], error}
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const job = JSON.parse(readFileSync(process.argv[2], "utf8"));
const TYPES = { f32: [Float32Array, "float32"], i64: [BigInt64Array, "int64"], i32: [Int32Array, "int32"] };
const inputs = job.inputs.map(({ name, dtype, shape, base64 }) => {
  const bytes = Uint8Array.from(Buffer.from(base64, "base64"));
  return { name, type: TYPES[dtype][1], shape, data: new TYPES[dtype][0](bytes.buffer) };
});

const { load } = await import(pathToFileURL(`${job.package}/index.js`));
const model = await load();
const own = Object.fromEntries(inputs.map(({ name, data, shape }) => [name, { data, shape }]));
const first = model.outputs[0].name;
const engines = { ingot: () => model.run(own)[first].data };

const ort = await import(pathToFileURL(createRequire(`${job.ort}/x.js`).resolve("onnxruntime-web")));
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(readFileSync(job.model), { executionProviders: ["wasm"] });
const feeds = Object.fromEntries(inputs.map(({ name, type, data, shape }) => [name, new ort.Tensor(type, data, shape)]));
engines.ort = async () => (await session.run(feeds))[first].data;

const [a, b] = [engines.ingot(), await engines.ort()];
const largest = b.reduce((m, x) => Math.max(m, Math.abs(Number(x))), 0);
const error = a.reduce((m, x, i) => Math.max(m, Math.abs(Number(x) - Number(b[i]))), 0) / largest;
const times = { ingot: [], ort: [] };
for (let round = -3; round < job.rounds; round++) {
  for (const [name, run] of Object.entries(engines)) {
    const start = process.cpuUsage();
    await run();
    const { user, system } = process.cpuUsage(start);
    if (round >= 0) times[name].push((user + system) / 1000);
  }
}
console.log(JSON.stringify({ ...times, error }));
