// Drives an agent with the unmodified npm SDK of the protocol: node drive.mjs COMMAND...
// Prints one line per check, and "exit N" with the exit code of the agent; a check that fails ends with 1.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import * as acp from "@agentclientprotocol/sdk";

const agent = spawn(process.argv[2], process.argv.slice(3), { stdio: ["pipe", "pipe", "ignore"] });
let log = [];
let wake = () => {};
let questions = [];
let answers = true;
const note = (...entry) => { log.push(entry); wake(); };
const until = (count) => new Promise((resolve) => {
  const timer = setTimeout(resolve, 50); // when it waits for more, it says no more
  wake = () => { if (log.length >= count) { clearTimeout(timer); resolve(); } };
  wake();
});

const client = acp.client({ name: "drive" })
  .onNotification(acp.methods.client.session.update, ({ params: { sessionId, update } }) =>
    note("update", sessionId, update.sessionUpdate, update.content?.text ?? update.status))
  .onRequest(acp.methods.client.session.requestPermission, ({ params }) => new Promise((resolve) => {
    const answer = (optionId) =>
      resolve({ outcome: optionId ? { outcome: "selected", optionId } : { outcome: "cancelled" } });
    questions.push(answer);
    note("ask", params.sessionId, params.toolCall.toolCallId);
    if (answers) answer("allow");
  }));

const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
await client.connectWith(stream, async (connection) => {
  const methods = acp.methods.agent;
  const initialized = await connection.request(methods.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
  assert.equal(initialized.protocolVersion, 1);
  console.log("initialized", initialized.agentInfo.name);

  const newSession = async () => (await connection.request(methods.session.new, { cwd: "/", mcpServers: [] })).sessionId;
  const prompt = async (sessionId, text, options) => {
    let outcome;
    try {
      const block = { type: "text", text };
      outcome = (await connection.request(methods.session.prompt, { sessionId, prompt: [block] }, options)).stopReason;
    } catch (error) {
      outcome = error.code ?? error.name;
    }
    note("answer", sessionId, text, outcome);
    return outcome;
  };
  const cancel = async (sessionId) => {
    await connection.notify(methods.session.cancel, { sessionId });
    for (const answer of questions.splice(0)) answer(null);
  };
  const text = (sessionId) => log.filter((e) => e[1] === sessionId && e[2] === "agent_message_chunk").map((e) => e[3]).join("");

  let played = 0;
  for (const words of ["a b c hold", "a tool:t hold", "stubborn", "a open:t until:1 fold hold"])
    for (const twice of [false, true])
      for (let step = 0; step < 6; step++) {
        const session = await newSession();
        [log, questions, answers] = [[], [], step % 2 === 0];
        const first = prompt(session, words), second = prompt(session, "b");
        await until(step);
        await cancel(session);
        if (twice) await cancel(session);
        const outcomes = [await first, await second, await prompt(session, "later")];
        assert.deepEqual(outcomes, ["cancelled", "cancelled", "end_turn"], JSON.stringify([words, step, log]));
        assert.equal(log.at(-1)[0], "answer");
        assert.ok(text(session).endsWith("later "));
        played++;
      }
  console.log("cancelled at every step", played);

  const [one, two] = [await newSession(), await newSession()];
  [log, answers] = [[], true];
  const [first, second] = [prompt(one, "a hold"), prompt(two, "b wait:0.1 tool:t c")];
  await until(2);
  await cancel(one);
  assert.deepEqual([await first, await second, text(two)], ["cancelled", "end_turn", "b t=allow c "]);
  console.log("two sessions");

  assert.equal(await prompt(one, "fail"), -32603);
  assert.equal(await prompt(one, " "), -32602);
  assert.equal(await prompt("unknown", "a"), -32002);
  assert.equal(await prompt(one, "stop:refusal"), "refusal");
  await assert.rejects(connection.request("no/such", {}), (error) => error.code === -32601);
  agent.stdin.write('{"broken\n');
  assert.equal(await prompt(one, "plan:x"), "end_turn");
  log = [];
  assert.equal(await prompt(one, "y".repeat(2_000_000)), "end_turn");
  assert.equal(text(one).length, 2_000_001);
  console.log("errors");

  const aborted = new AbortController();
  const cut = prompt(two, "a hold", { cancellationSignal: aborted.signal });
  await until(log.length + 1);
  aborted.abort();
  console.log("aborted", await cut);
  assert.equal(await prompt(two, "a"), "end_turn");
});
agent.on("exit", (code) => { console.log("exit", code); process.exit(0); });
agent.stdin.end();
