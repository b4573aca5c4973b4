// Watch the conversations of a gateway, and compact one when it asks for it: the control API from TypeScript.
//
//     HOLDFAST_CONTROL_TOKEN=… npx tsx examples/control_api.ts [SESSION]
//
// The token is in the file that `holdfast gateway` names when it starts.

const base = process.env.HOLDFAST_GATEWAY ?? "http://127.0.0.1:8787";
const headers = { authorization: `Bearer ${process.env.HOLDFAST_CONTROL_TOKEN}`, "content-type": "application/json" };

type Session = { id: string; title: string; messages: number; tokens: number; cost: number; compaction_due: string };
type Preview = { id: string; tokens_before: number; tokens_after: number; summary: string[] };

async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await fetch(`${base}/holdfast/v1/sessions${path}`, { method, headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as T;
}

async function* events(id: string, last = ""): AsyncGenerator<{ id: string; kind: string }> {
  const live = { ...headers, accept: "text/event-stream", ...(last && { "last-event-id": last }) };
  const answer = await fetch(`${base}/holdfast/v1/sessions/${id}/events`, { headers: live });
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of answer.body as unknown as AsyncIterable<Uint8Array>) {
    rest += decoder.decode(chunk, { stream: true });
    const whole = rest.split("\n\n");
    rest = whole.pop() ?? "";
    for (const one of whole) {
      const fields = Object.fromEntries(one.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2)));
      if (fields.id) yield { id: fields.id, kind: fields.event };
    }
  }
}

const { sessions } = await call<{ sessions: Session[] }>("GET", "?limit=10");
for (const one of sessions) console.log(`${one.id}  ${one.messages} messages  ${one.title}`);

const id = process.argv[2] ?? sessions[0]?.id;
if (!id) throw new Error("there is no session yet: send a request through the gateway first");
await call("POST", `/${id}/settings`, { compaction: "ask" });

for await (const event of events(id)) {
  console.log(event.id, event.kind);
  const { compaction_due: due } = await call<Session>("GET", `/${id}`);
  if (due) {
    const preview = await call<Preview>("POST", `/${id}/preview`);
    console.log(`${due}: ${preview.tokens_before} tokens would be ${preview.tokens_after}`);
    await call("POST", `/${id}/compact`, { preview: preview.id });
  }
}
