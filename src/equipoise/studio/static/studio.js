"use strict";
const csrf = document.querySelector('meta[name="csrf"]').content;

// Times in the reader's own format.
for (const time of document.querySelectorAll("time[data-time]")) {
  time.textContent = new Date(1000 * Number(time.dataset.time)).toLocaleString();
}

// Dropped or chosen files are sent one by one; those of one drop share a folder.
const drop = document.getElementById("drop");
if (drop) {
  const state = document.getElementById("upload-state");
  const input = document.getElementById("files");
  const send = async (files) => {
    const group = Array.from(crypto.getRandomValues(new Uint8Array(6)), (b) => b.toString(16).padStart(2, "0")).join("");
    let last = null;
    for (const file of files) {
      state.textContent = `Copying ${file.name} …`;
      const query = new URLSearchParams({ name: file.name, group });
      let answer;
      try {
        const response = await fetch(`/upload?${query}`, { method: "PUT", body: file, headers: { "X-CSRF-Token": csrf } });
        answer = response.headers.get("content-type").startsWith("application/json") ? await response.json() : { problem: await response.text() };
      } catch (error) {
        answer = { problem: "the studio does not answer: is it still running?" };
      }
      if (answer.problem) {
        state.textContent = answer.problem;
        return;
      }
      last = answer;
    }
    if (!last) return;
    const path = files.length > 1 ? last.folder : last.path;
    const choice = document.getElementById("path");
    if (!choice) {
      location.href = `/data/table?${new URLSearchParams({ path })}`;
      return;
    }
    const option = new Option(files[0].name, path, true, true);
    choice.append(option);
    state.textContent = `${files[0].name} is chosen.`;
  };
  input.addEventListener("change", () => send([...input.files]));
  for (const name of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(name, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", name === "dragover");
      if (name === "drop") send([...event.dataTransfer.files]);
    });
  }
}

// A form shows the command that does the same, as it is filled in.
const form = document.querySelector("form[data-command]");
if (form) {
  let timer;
  const show = async () => {
    const methods = new FormData(form).getAll("methods").join(",");
    const body = new URLSearchParams(new FormData(form));
    body.set("methods", methods);
    const response = await fetch(form.dataset.command, { method: "POST", body, headers: { "X-CSRF-Token": csrf } });
    document.getElementById("command").textContent = await response.text();
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, 200);
  });
  show();
}
document.body.dataset.ready = "yes";
for (const button of document.querySelectorAll("[data-print]")) button.addEventListener("click", () => window.print());
