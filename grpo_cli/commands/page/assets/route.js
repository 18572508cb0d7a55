// Where an address leads: the run, a step, a group, a token.

// The parts of an address: #step-3-group-1-response-0-token-17
function address() {
  const part = (name) => {
    const found = location.hash.match(new RegExp(`${name}-(-?\\d+)`));
    return found ? Number(found[1]) : null;
  };
  const by = location.hash.match(/by-(\w+)/)?.[1];
  return { step: part("step"), group: part("group"), response: part("response"), token: part("token"), by };
}

// Shows what the address says: the run, a step, or a group of it.
async function route(page, run) {
  const { step, group, response, token, by } = address();
  const block = group === null ? null : run.groups[step]?.[group]?.block;
  const record = block && (await readBlock(document.getElementById(block).textContent));
  if (block && (address().group !== group || address().step !== step)) return;
  page.crumbs(run, step, block ? group : null);
  if (block) {
    if (by) page.quantityName = by;
    page.open(record);
    page.jumps.goTo(response, token);
  } else if (run.kept[step] !== undefined) page.plain(new StepView(run, step));
  else page.plain((run.view ??= new RunView(run)));
  if (step !== null && run.kept[step] === undefined) page.say(`This page has no step ${step}.`);
}

// Shows the record of the address, or the one with the most unusual token.
async function openRecord(page, settings) {
  const { records } = settings;
  const first = settings.ranked?.rows.map((row) => row[4]).find((place) => place !== null) ?? 0; // of the batch's first token
  const wanted = Number(location.hash.match(/record-(\d+)/)?.[1] ?? first);
  const at = records[wanted] ? wanted : 0;
  const record = await readBlock(document.getElementById(`record-${at}`).textContent);
  record.only = settings.only;
  page.choice(settings, at);
  page.open(record);
  const { response, token } = address();
  if (response !== null) page.jumps.goTo(response, token);
  else if (location.hash && settings.ranked) page.path.scrollIntoView();
}

async function begin() {
  const settings = JSON.parse(document.querySelector("#settings").textContent);
  const page = new Page(settings);
  const run = document.querySelector("#run");
  if (location.hash) page.main.replaceChildren(); // what is there until then is of the whole run
  if (run) {
    const head = (await readBlock(run.textContent, { tokens: false }));
    addEventListener("hashchange", () => route(page, head));
    await route(page, head);
  } else {
    addEventListener("hashchange", () => openRecord(page, settings));
    await openRecord(page, settings);
  }
  globalThis.page = page;
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

begin().catch((error) => {
  const words = `The numbers of this page cannot be read here (${error.message}). It needs a browser of 2023 or later.`;
  document.querySelector("main").replaceChildren(make("p.problem", {}, words));
});
