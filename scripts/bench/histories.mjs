// What an idle installation adds to its histories: events of each workflow over a stretch in which nobody does anything
// (INV-11).

export async function histories({ client, workflows, minutes, report }) {
  const count = async id => {
    const { workflowExecutionInfo: info } = await client.workflow
      .getHandle(id)
      .describe()
      .then(d => d.raw);
    return { run: info.execution.runId, events: Number(info.historyLength) };
  };
  const before = await Promise.all(workflows.map(w => count(w.id)));
  console.log(`  histories: idle for ${minutes} min …`);
  await new Promise(resolve => setTimeout(resolve, minutes * 60_000));
  const after = await Promise.all(workflows.map(w => count(w.id)));
  for (const [i, { id, what, goal }] of workflows.entries()) {
    const anew = before[i].run !== after[i].run;
    const events = anew ? after[i].events : after[i].events - before[i].events;
    const stretch = `${events} in ${minutes} min`;
    report.detail(`history of ${id}`, { minutes, events, continued_as_new: anew });
    report.record(`events an hour of ${what} (${stretch})`, '', goal, [(events * 60) / minutes]);
  }
}
