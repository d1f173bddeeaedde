// Copies what a button names, or what stands before it. Browsers give the clipboard to pages of this
// machine and over TLS; elsewhere the text is selected and copied as by hand.
function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

export function showCopies() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const done = await copy(button.dataset.copy ?? button.previousElementSibling.textContent);
    button.focus();
    button.textContent = done ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
