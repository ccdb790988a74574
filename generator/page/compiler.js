/* What each stage of the compiler made of the model, and its ops before and after a stage. */

/*
 * Rows of ops before and after: what is the same, and each new op beside those whose place it took: that gave its results,
 * and through tensors that are gone, those that fed them.
 */
function compare_ops(before, after) {
	const text = (all) => new Set(all.map((o) => o.text));
	const old_texts = text(before), new_texts = text(after);
	const gone = before.filter((o) => !new_texts.has(o.text)), fresh = after.filter((o) => !old_texts.has(o.text));
	const used = new Set(after.flatMap((o) => [...o.in, ...o.out.map((x) => x.name)]));
	const made = new Set(before.flatMap((o) => o.out.map((x) => x.name)));
	const names = (o) => [...o.in, ...o.out.map((x) => x.name)].filter((n) => made.has(n) && !used.has(n));
	const group = new Map(fresh.map((o) => [o, []])), owner = new Map();
	const give = (o, to) => { group.get(to).push(o); owner.set(o, to); };
	for (const f of fresh)
		for (const o of gone)
			if (!owner.has(o) && o.out.some((x) => f.out.some((y) => y.name === x.name)))
				give(o, f);
	for (let moved = true; moved;) {
		moved = false;
		for (const o of gone)
			if (!owner.has(o)) {
				const to = [...owner].find(([other]) => names(o).some((n) => names(other).includes(n)));
				if (to) {
					give(o, to[1]);
					moved = true;
				}
			}
	}
	const rows = after.map((o) => old_texts.has(o.text) ? { before: [o], after: o, same: true }
		: { before: before.filter((x) => group.get(o).includes(x)), after: o, same: false });
	for (const o of gone)
		if (!owner.has(o))
			rows.push({ before: [o], after: null, same: false });
	return rows;
}

function compiler(p, box) {
	const texts = { graph: p.graph, shard: p.shard, fuse: p.fuse };
	const added = (a, b) => [...b.tensors.keys()].filter((t) => !a.tensors.has(t)).length;
	const again = [...p.graph.tensors.keys()].filter((t) => /_re_/.test(t)).length;
	const launches = [...new Set(p.stages.flatMap((st) => [...st.programs.keys()]))].reduce((a, n) =>
		a + p.stages.find((st) => st.programs.has(n)).programs.get(n).length, 0);
	box.append(table("Stages of the compiler", [["stage", ""], ["gives", ""], ["of this model", ""]], [
		["load, check", "the description, complete: every default filled in, every rule checked", "model/resolved.lua"],
		["graph", "the mathematics: forward, gradients by rule, recomputation, update", `${p.graph.ops} ops and ${p.graph.tensors.size} tensors in ${
			p.segments.length} segments; a kind of layer stands once${again ? `; ${again} tensors are computed again` : ""}`],
		["shard", "who owns what, collectives made explicit", p.world === 1 ? "one rank: nothing changes"
			: `${p.shard.ops} ops, ${added(p.graph, p.shard)} new tensors; each of ${p.stages.length} stages has its actions`],
		["fuse", "ops that one kernel does better", `${p.shard.ops} ops become ${p.fuse.ops}`],
		["plan", "kernels, offsets, streams and events, costs", `${launches} launches of ${p.kernels.size} kernel instances; ${
			bytes(Math.max(...p.stages.map((st) => st.arena)))} of arena`],
		["emit", "C and CUDA sources, formatted", "one function for each segment and phase"],
	]));
	const step = { now: "fuse" }, ops = el("div");
	const segments = [...new Set(p.fuse.programs.map((g) => g.segment))];
	let at = (p.kinds.find((k) => k.experts) || p.kinds[0] || p.segments[0]).name;
	const of = (g) => g.programs.filter((x) => x.segment === at).flatMap((x) => x.ops.map((o) => ({ ...o, phase: x.phase, text: `${x.phase[0].toUpperCase()} ${o.text}`, plain: o.text })));
	function show() {
		const [from, to] = step.now === "fuse" ? ["shard", "fuse"] : ["graph", "shard"];
		const before = of(texts[from]), after = of(texts[to]), rows = compare_ops(before, after);
		const cell = (list) => list.map((o) => el("div", { class: "op" }, el("b", null, `${o.phase[0].toUpperCase()} ${o.op}`),
			el("span", { class: "dim" }, ` ${o.out.map((x) => (x.adds ? "+" : "") + x.name).join(", ")} ← ${o.in.join(", ")}`)));
		ops.replaceChildren(table(`${at}: ${before.length} ops before, ${after.length} after`, [["before", ""], ["", ""], ["after", ""]],
			rows.map((r) => [el("div", { class: r.same ? "same" : "gone" }, cell(r.before)), r.same ? "" : !r.after ? "gone" : r.before.length ? "→" : "new",
				r.after ? el("div", { class: r.same ? "same" : "fresh" }, cell([r.after])) : ""])));
	}
	box.append(el("h3", null, "Ops before and after a stage"), el("div", { class: "bar" },
		buttons("Stage to compare", p.world > 1 ? [["fuse", "fusion"], ["shard", "shard"]] : [["fuse", "fusion"]], "fuse", (v) => { step.now = v; show(); }),
		choice("segment", segments.map((s) => [s, s]), at, (v) => { at = v; show(); })),
	el("p", { class: "dim" }, "F forward, B backward, W gradients of weights apart. Coloured rows changed; the others went through."), ops);
	show();
	box.plan_view = { ...box.plan_view, compiler: { rows: () => compare_ops(of(p.shard), of(p.fuse)) } };
}
