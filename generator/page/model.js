/* What a plan's dumps say, as objects, and what follows from it. Offsets and sizes are those of --dump=plan. */

/* "+dw = linear_dw(dy, x; p=1)" */
function read_op(text) {
	const m = /^(.*?) ?= (\w+)\((.*)\)$/.exec(text);
	const parts = m[3].split(/[,;] */).filter(Boolean);
	return {
		text, op: m[2],
		out: m[1].split(", ").filter(Boolean).map((name) => ({ name: name.replace("+", ""), adds: name[0] === "+" })),
		in: parts.filter((x) => !x.includes("=")),
		with: parts.filter((x) => x.includes("=")),
	};
}

/* --dump=graph, and the same after later stages: tensors, and ops by segment and phase. */
function read_graph(text) {
	const g = { tensors: new Map(), programs: [], ops: 0 };
	for (const line of text.split("\n")) {
		const t = /^tensor (\S+) +(\S+) +(\w+)\[([\d,]*)\](?: x(\d+))?(?: +(\S+))?/.exec(line);
		const head = /^(\S+) (forward|backward|weights)\b/.exec(line);
		if (t) {
			g.tensors.set(t[1], { name: t[1], class: t[2], role: t[3], dims: t[4].split(",").map(Number),
				layers: Number(t[5] || 0), hf: t[6] || "" });
		} else if (head) {
			g.programs.push({ segment: head[1], phase: head[2], ops: [] });
		} else if (line.startsWith("  ")) {
			g.programs[g.programs.length - 1].ops.push(read_op(line.trim()));
			g.ops++;
		}
	}
	return g;
}

/* One stage of --dump=plan; more has what that leaves out, in the same order. */
function read_stage(lines, more) {
	const st = { ...more, regions: {}, buffers: new Map(), programs: new Map() };
	let program = null, nbuffer = 0, nlaunch = 0;
	for (const line of lines) {
		let m;
		if ((m = /^arena (\d+) bytes/.exec(line))) {
			st.arena = Number(m[1]);
		} else if ((m = /^  region (.+?) +(\d+) +(\d+)$/.exec(line))) {
			st.regions[m[1]] = { off: Number(m[2]), bytes: Number(m[3]) };
		} else if (program && (m = /^ +(\d+) stream (\d+)  (\S+) +(.*)$/.exec(line))) {
			const text = m[4].replace(/(, (after|then) event \d+)+$/, "");
			const [flops, moved, time, part, ws, ws_bytes, calls] = more.launches[nlaunch++];
			program.push({ ...read_op(text), kernel: m[3], stream: Number(m[2]), flops, moved, time, part, ws, ws_bytes,
				calls, after: [...m[4].matchAll(/, after event (\d+)/g)].map((x) => Number(x[1])),
				event: Number((/, then event (\d+)/.exec(m[4]) || [])[1] || 0) });
		} else if ((m = /^(\S+) (forward|backward|weights)$/.exec(line))) {
			program = [];
			st.programs.set(`${m[1]} ${m[2]}`, program);
		} else if ((m = /^  (\S+) +(.+?) +(\d+) +(\d+)(?: x\d+ stride (\d+))?$/.exec(line))) {
			const [kind, next, life, layers, group] = more.buffers[nbuffer++];
			const size = Number(m[4]);
			st.buffers.set(m[1], { name: m[1], region: m[2], off: Number(m[3]), bytes: size, kind, next, life, layers, group,
				stride: m[5] === undefined ? (kind === 1 ? Math.ceil(size / 256) * 256 : 0) : Number(m[5]) });
		}
	}
	return st;
}

function read_plan(d) {
	const p = { ...d, graph: read_graph(d.graph), shard: read_graph(d.shard), fuse: read_graph(d.fuse), kernels: new Map() };
	const [places, kernels] = d.dump.split("\nkernels\n");
	const per = d.stages.length > 1 ? places.split(/^stage \d+\n/m).slice(1) : [places];
	p.stages = d.stages.map((more, i) => read_stage(per[i].split("\n"), more));
	for (const line of kernels.split("\n")) {
		const m = /^  (\S+) +(\S+)(?: where (.*))?$/.exec(line);
		if (m)
			p.kernels.set(m[1], { file: m[2], where: m[3] || "" });
	}
	p.tensors = p.fuse.tensors;
	p.segment = new Map(d.segments.map((s) => [s.name, s]));
	p.kinds = d.segments.slice(d.ends.embed + 1, d.ends.head);
	p.kind_of = [];
	for (const k of p.kinds)
		for (const l of k.layers)
			p.kind_of[l] = k;
	p.last_phase = d.phases[d.costs.length - 1];
	p.bubble_shown = d.stages.length > 1;
	p.stages.forEach((st) => number_layers(p, st));
	p.groups.forEach((g) => {
		g.members = new Map();
		g.first.forEach((f, r) => g.members.has(f) ? g.members.get(f).push(r) : g.members.set(f, [r]));
	});
	p.ranks = p.groups[0].first.length;
	return p;
}
function group_of(p, name) {
	return p.groups.find((g) => g.name === name);
}
/* The ranks that a rank acts with in a group, and its place among them. */
function members(p, name, rank) {
	const g = group_of(p, name);
	return g.members.get(g.first[rank]);
}
function stage_of(p, rank) {
	return Math.floor(rank / group_of(p, "data").size);
}

/* Where a stage's layers stand among those of their kind, and in their chunk. */
function number_layers(p, st) {
	const here = new Map(), at = (map, key) => { const n = map.get(key) || 0; map.set(key, n + 1); return n; };
	st.index = new Map();
	st.saved = new Map();
	st.entry = new Map();
	for (const c of st.chunks) {
		const saved = new Map();
		for (let i = 0; i < c.n; i++) {
			const l = c.first + i, k = p.kind_of[l].name;
			st.index.set(l, at(here, k));
			st.saved.set(l, at(saved, k));
			st.entry.set(l, i);
		}
		if (c.head)
			st.entry.set(p.kind_of.length, c.n);
	}
}
/* The bytes of a tensor in a layer and in the first slot of a chunk, as generator/plan/visit.c has them. */
function extent(p, st, name, layer, chunk) {
	const b = st.buffers.get(name), t = p.tensors.get(name);
	if (!b)
		return null;
	const kept = b.region === "saved activations" && t.class !== "cache";
	const index = !t.layers ? 0 : kept ? st.saved.get(layer) : st.index.get(layer);
	let off = b.off + (b.kind === 0 ? index : (st.entry.get(layer) || 0) + b.next) * b.stride;
	if (kept && chunk)
		off += chunk.rooms[b.life][0] * st.kept[b.life];
	return [off, off + b.bytes];
}

/* What a pass over a chunk does, in order: segments with their layers. */
function visits(p, chunk, phase) {
	const list = [], forward = phase === "forward", name = (at) => p.segments[at].name;
	if (chunk.embed)
		list.push({ segment: name(p.ends.embed), phase, layer: 0 });
	for (let i = 0; i < chunk.n; i++)
		list.push({ segment: p.kind_of[chunk.first + i].name, phase, layer: chunk.first + i });
	if (chunk.head)
		list.push({ segment: name(p.ends.head), phase, layer: p.kind_of.length });
	if (!forward)
		list.reverse();
	return list.filter((v) => p.stages.some((st) => st.programs.has(`${v.segment} ${phase}`)));
}
function program(st, v) {
	return st.programs.get(`${v.segment} ${v.phase}`) || [];
}
/* Seconds of a pass by the launches' expected times; 0 where none is known. */
function pass_seconds(p, st, chunk, phase) {
	let sum = 0;
	for (const v of visits(p, chunk, phase))
		for (const l of program(st, v))
			sum += l.time;
	return sum;
}
/* Of a step, what one rank sends of a kind takes alone on its links. */
function sent_seconds(p, st, kind) {
	return st.sends.filter((s) => p.sent[s.kind] === kind).reduce((a, s) => a + s.seconds, 0);
}

/*
 * When each pass of a step starts and ends, stage by stage, and what it waited for. Without timed passes take the units of
 * the plan's own bubble, and what is sent takes no time; with it, expected seconds.
 */
function simulate(p, timed) {
	const chunks = p.stages[0].chunks.length, places = p.stages.length * chunks, n = p.microbatches;
	const at = []; /* by place: stage and chunk */
	p.stages.forEach((st, s) => st.chunks.forEach((c, k) => { at[c.place] = { s, k, st, c }; }));
	/* a stage within the pipeline sends activations one way and gradients the other, of each microbatch and chunk */
	const hop = timed ? Math.max(...p.stages.map((st) => sent_seconds(p, st, "activations"))) / (2 * n * chunks) : 0;
	const rows = p.stages.map((st) => timed ? (sent_seconds(p, st, "expert rows sent") +
		sent_seconds(p, st, "expert rows returned")) / (2 * n * chunks) : 0);
	const length = at.map((a) => p.costs.map((cost, ph) => timed
		? pass_seconds(p, a.st, a.c, p.phases[ph]) + (ph < 2 ? rows[a.s] : 0) : cost));
	const run = { timed, stages: [], end: 0, busy: 0, hop, rows };
	const done = at.map(() => p.costs.map(() => new Float64Array(n).fill(-1)));
	const one = (ph, k, m) => (m * chunks + k) * 3 + ph;
	const most = 20000; /* of a trainer with one stage, which has no list of passes */
	const lists = p.stages.length > 1 ? p.stages.map((st) => st.passes)
		: [Array.from({ length: Math.min(n, most) * p.costs.length }, (_, i) =>
			one(i % p.costs.length, 0, Math.floor(i / p.costs.length)))];
	const next = lists.map(() => 0), now = lists.map(() => 0);
	run.stages = lists.map((list) => ({ list, start: new Float64Array(list.length), wait: new Float64Array(list.length),
		sent: new Float64Array(list.length), n: 0, tail: [] }));
	for (let moved = true; moved;) {
		moved = false;
		for (let s = 0; s < lists.length; s++)
			for (; next[s] < lists[s].length; next[s]++, moved = true) {
				const [ph, k, m] = pass_of(lists[s][next[s]], chunks), place = p.stages[s].chunks[k].place;
				const other = ph === 0 ? place - 1 : ph === 1 ? place + 1 : -1;
				let ready = 0, late = 0;
				if (other >= 0 && other < places) {
					if (done[other][ph][m] < 0)
						break;
					late = at[other].s !== s ? hop : 0;
					ready = done[other][ph][m] + late;
				}
				const out = run.stages[s], start = Math.max(now[s], ready);
				out.start[next[s]] = start;
				out.wait[next[s]] = start - now[s];
				out.sent[next[s]] = Math.min(late, start - now[s]);
				now[s] = start + length[place][ph];
				done[place][ph][m] = now[s];
				run.busy += length[place][ph];
				out.n = next[s] + 1;
			}
	}
	const last = Math.max(...now);
	run.passes_end = last;
	run.bubble = 1 - run.busy / (last * lists.length);
	run.length = (s, i) => {
		const [ph, k] = pass_of(lists[s][i], chunks);
		return length[p.stages[s].chunks[k].place][ph];
	};
	run.complete = lists.every((l, s) => run.stages[s].n === l.length) && lists[0].length === n * chunks * p.costs.length;
	p.stages.forEach((st, s) => {
		const update = (st.programs.get(`${p.segments[p.ends.update].name} forward`) || [])
			.reduce((a, l) => a + l.time * (l.calls || 1), 0);
		let t = now[s];
		for (const [name, d] of timed ? [["gradients reduced", sent_seconds(p, st, "gradients reduced")],
			["update", update], ["weights gathered", sent_seconds(p, st, "weights gathered")]] : [])
			if (d > 0) {
				run.stages[s].tail.push({ name, start: t, end: t + d });
				t += d;
			}
		run.end = Math.max(run.end, t);
	});
	return run;
}
/* Phase, chunk and microbatch of a pass as the data have it. */
function pass_of(code, chunks) {
	const rest = Math.floor(code / 3);
	return [code % 3, rest % chunks, Math.floor(rest / chunks)];
}
