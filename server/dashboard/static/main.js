// What every page has: colours, live regions, actions, copying, the forms' small helps.

import { request, toast } from "./api.js";
import * as live from "./live.js";

const THEMES = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

function theme() {
  const button = document.getElementById("theme");
  const current = () => document.documentElement.dataset.theme || "system";
  const label = () => {
    const words = current() === "system" ? "as the system" : current();
    button.setAttribute("aria-label", `Colours: ${words}`);
    button.title = `Colours: ${words}`;
    button.firstElementChild.textContent = SIGNS[current()];
  };
  button.hidden = false;
  label();
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(current()) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "system") localStorage.removeItem("felix-theme");
      else localStorage.setItem("felix-theme", next);
    } catch {
      // storage may be forbidden: the choice holds for this page
    }
    label();
    document.dispatchEvent(new CustomEvent("felix:theme"));
  });
}

function actions() {
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.dataset.sure) {
      event.preventDefault();
      if (await confirmed(form.dataset.sure, form.dataset.yes)) form.submit();
      return;
    }
    if (!form.dataset.verb) return;
    event.preventDefault();
    if (form.dataset.confirm && !(await confirmed(form.dataset.confirm, "Cancel the job"))) return;
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      const job = await request("POST", `/v1/jobs/${document.body.dataset.job}/${form.dataset.verb}`);
      toast(`Job ${job.id} is ${job.state}.`);
      await live.refresh();
      if ("follow" in document.body.dataset) live.follow();
    } catch (error) {
      toast(error.message, true);
    } finally {
      button.disabled = false;
    }
  });
}

// A dialog in place of the browser's own, which cannot be styled.
function confirmed(question, yes) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", question);
  const text = document.createElement("p");
  text.textContent = question;
  const form = document.createElement("form");
  form.method = "dialog";
  form.className = "row";
  for (const [value, label, kind] of [["no", "Keep it", "secondary"], ["yes", yes, "danger"]]) {
    const button = document.createElement("button");
    button.value = value;
    button.textContent = label;
    button.className = kind;
    form.append(button);
  }
  dialog.append(text, form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}

function copying() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch {
      toast("The browser does not allow copying here: select the text and copy it.", true);
    }
  });
}

// The buttons of a selection: enabled where one of the ticked jobs allows it.
function selection() {
  const form = document.getElementById("chosen");
  if (!form) return;
  const all = document.getElementById("select-all");
  const compare = document.getElementById("compare");
  const boxes = () => [...form.querySelectorAll("input[name=job]")];
  const show = () => {
    const ticked = boxes().filter((box) => box.checked);
    const n = ticked.length;
    compare.disabled = n === 0;
    compare.textContent = n ? `Compare ${n} selected` : "Compare selected";
    document.getElementById("n-selected").textContent = n ? `${n} selected` : "Select jobs";
    form.classList.toggle("has-selection", n > 0);
    all.checked = n > 0 && n === boxes().length;
    all.indeterminate = n > 0 && !all.checked;
    for (const button of form.querySelectorAll("[data-bulk]")) {
      button.disabled = !ticked.some((box) => box.dataset.verbs.split(" ").includes(button.dataset.bulk));
    }
  };
  all.hidden = false;
  all.addEventListener("change", () => boxes().forEach((box) => (box.checked = all.checked)));
  form.addEventListener("change", show);
  document.addEventListener("felix:fresh", show);
  show();
}

// The entry of this page, where the navigation is longer than the screen.
function navigation() {
  const nav = document.querySelector(".top nav");
  const current = nav?.querySelector("[aria-current]");
  if (current) nav.scrollLeft = current.offsetLeft - (nav.clientWidth - current.offsetWidth) / 2;
}

theme();
navigation();
actions();
copying();
document.getElementById("problem")?.focus();
selection();
live.start();
