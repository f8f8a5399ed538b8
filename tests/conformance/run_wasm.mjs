// node run_wasm.mjs FOLDER: run the package in FOLDER/net on the tensors of FOLDER/inputs.json, write FOLDER/outputs.json.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = process.argv[2];
const { load } = await import(pathToFileURL(`${folder}/net/index.js`));
const TYPES = {
  f32: Float32Array, f64: Float64Array, i8: Int8Array, i16: Int16Array, u16: Uint16Array, f16: Uint16Array,
  bf16: Uint16Array, i32: Int32Array, u32: Uint32Array, i64: BigInt64Array, u64: BigUint64Array, i4: Int8Array,
  i2: Int8Array,
};
const model = await load();
const calls = JSON.parse(readFileSync(`${folder}/inputs.json`, "utf8"));
const results = calls.map((tensors) => {
  const inputs = Object.fromEntries(tensors.map(({ name, dtype, shape, hex }) => {
    const bytes = Uint8Array.from(Buffer.from(hex, "hex"));
    return [name, { data: new (TYPES[dtype] ?? Uint8Array)(bytes.buffer), shape }];
  }));
  const outputs = model.run(inputs);
  return model.outputs.map(({ name }) => {
    const { data, shape } = outputs[name];
    return { shape, hex: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("hex") };
  });
});
writeFileSync(`${folder}/outputs.json`, JSON.stringify(results));
