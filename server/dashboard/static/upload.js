// The form of a new job. A change of its source or operator leaves the rest as it is; a file is sent
// to the API with its progress shown, and errors are put at their fields.

import { token } from "./api.js";

const form = document.getElementById("job-form");
const NUMBERS = ["trials", "seconds", "priority", "seed"];
const OPTIONS = ["round_size", "patience_rounds"];
const uploadId = crypto.getRandomValues(new Uint32Array(4)).join("-");
let n = 0;

function job(fields) {
  const text = (name) => String(fields.get(name) || "").trim();
  const body = { kind: text("kind"), options: {} };
  for (const name of ["name", "target", "note", "strategy"]) if (text(name)) body[name] = text(name);
  for (const name of NUMBERS) if (text(name)) body[name] = Number(text(name));
  for (const name of OPTIONS) if (text(name)) body.options[name] = Number(text(name));
  const tags = text("tags").split(",").map((tag) => tag.trim()).filter(Boolean);
  if (tags.length) body.tags = tags;
  if (fields.get("begin_anew")) body.reuse = false;
  if (fields.get("allow_tf32")) body.allow_tf32 = true;
  if (body.kind === "onnx" && fields.get("no_network")) body.network = false;
  if (body.kind === "onnx" && fields.get("pytorch")) body.pytorch = true;
  if (body.kind === "onnx") body.shapes = shapes(text("shapes"));
  return body;
}

// Lines like `x: 1, 3, 224, 224`.
function shapes(text) {
  const byInput = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const [, name, extents] = /^(.+?)\s*[:=]\s*([\d,x×\s]+)$/.exec(line) || [];
    if (!name) throw { shapes: "one input a line, like x: 1, 3, 224, 224" };
    byInput[name] = extents.split(/[\s,x×]+/).filter(Boolean).map(Number);
  }
  return byInput;
}

function clear() {
  document.getElementById("upload-problem").hidden = true;
  for (const mark of form.querySelectorAll(".wrong")) mark.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
  }
}

function wrong(name, message) {
  const field = form.elements[name];
  if (!(field instanceof HTMLElement)) return false;
  field.setAttribute("aria-invalid", "true");
  const note = document.createElement("p");
  note.className = "wrong";
  note.id = `f-${name}-wrong`;
  note.setAttribute("role", "alert");
  note.textContent = message;
  field.after(note);
  field.setAttribute("aria-describedby", note.id);
  field.closest("details")?.setAttribute("open", "");
  field.focus();
  return true;
}

function refused(detail, errors = [], isAboutFile = false) {
  let placed = isAboutFile && !errors.length && wrong("file", detail);
  for (const { where, message } of errors) {
    const name = where.split("/").find((part) => form.elements[part]);
    if (name) placed = wrong(name, message) || placed;
  }
  if (placed) return;
  const place = document.getElementById("upload-problem");
  place.textContent = detail;
  place.hidden = false;
  place.focus();
}

function send(event) {
  if (form.elements.source.value !== "file") return; // an ordinary form
  event.preventDefault();
  clear();
  const fields = new FormData(form);
  const file = fields.get("file");
  const limit = Number(form.dataset.limit);
  if (file.size > limit) return wrong("file", `This file has ${(file.size / 1e6).toFixed(1)} MB, more than your key may upload.`);
  const body = new FormData();
  try {
    body.append("job", JSON.stringify(job(fields)));
  } catch (error) {
    return wrong("shapes", error.shapes || String(error));
  }
  body.append("file", file);
  const button = document.getElementById("send");
  const progress = document.getElementById("upload-progress");
  const state = document.getElementById("upload-state");
  const sending = new XMLHttpRequest();
  sending.open("POST", "/v1/jobs/upload");
  sending.setRequestHeader("X-CSRF-Token", token());
  sending.setRequestHeader("Idempotency-Key", `upload-${uploadId}-${n}`);
  sending.responseType = "json";
  sending.upload.onprogress = ({ loaded, total }) => {
    progress.value = loaded / total;
    state.textContent = loaded < total ? "Uploading…" : "The service reads the program…";
  };
  sending.onloadend = () => {
    button.disabled = false;
    if (sending.status) n += 1; // what broke on the way may have arrived: it keeps its key
    progress.hidden = true;
    state.textContent = "";
    const response = sending.response;
    if (sending.status === 201 || sending.status === 200) location.href = `/dashboard/jobs/${response.id}`;
    else if (sending.status === 0) refused("The connection broke: check it and send the file again.");
    else if (sending.status === 401) refused("Your login has ended: log in in another tab, then send again.");
    else refused(response?.detail || `The service answered ${sending.status}.`, response?.errors, sending.status === 422);
  };
  button.disabled = true;
  progress.value = 0;
  progress.hidden = false;
  sending.send(body);
}

// What is filled in for one source is kept while another one is looked at.
function show(source) {
  form.elements.source.value = source;
  for (const part of form.querySelectorAll("[data-from]")) {
    part.hidden = part.disabled = part.dataset.from !== source;
  }
  for (const link of document.querySelectorAll("#sources a")) {
    if (link.dataset.source === source) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  document.getElementById("send").textContent = source === "file" ? "Upload and submit" : "Submit";
}

async function showOperator(select) {
  const address = `/dashboard/submit?op=${encodeURIComponent(select.value)}`;
  try {
    const page = new DOMParser().parseFromString(await (await fetch(address)).text(), "text/html");
    document.getElementById("operator-fields").replaceWith(page.getElementById("operator-fields"));
    history.replaceState(null, "", address);
  } catch {
    select.form.requestSubmit(); // the page as a whole
  }
}

form.addEventListener("submit", send);
document.getElementById("sources").addEventListener("click", (event) => {
  const link = event.target.closest("a[data-source]");
  if (!link) return;
  event.preventDefault();
  show(link.dataset.source);
  history.replaceState(null, "", link.href);
});
document.getElementById("show-op").hidden = true; // the choice itself shows the fields
document.getElementById("op").addEventListener("change", (event) => showOperator(event.target));
const ofModels = [document.getElementById("shapes-field"), document.getElementById("network-field"), document.getElementById("pytorch-field")];
const showModels = () => ofModels.forEach((field) => (field.hidden = form.elements.kind.value !== "onnx"));
for (const kind of form.querySelectorAll("input[name=kind]")) kind.addEventListener("change", showModels);
showModels();
