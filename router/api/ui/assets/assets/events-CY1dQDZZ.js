async function*e(e,r=1/0){if(!e.body)return;let i=e.body.pipeThrough(new TextDecoderStream).getReader(),a=``;try{for(;;){let{done:e,value:o}=await t(r,i.read());if(e)return;let s=(a+o).replaceAll(`\r
`,`
`).split(`

`);a=s.pop()??``;for(let e of s){let t=n(e);t&&(yield t)}}}finally{await i.cancel()}}async function t(e,t){if(e===1/0)return t;let n,r=new Promise((t,r)=>{let i=`The server has sent nothing for ${e/1e3} s`;n=setTimeout(()=>r(Error(i)),e)});try{return await Promise.race([t,r])}finally{clearTimeout(n)}}function n(e){let t=`message`,n=[];for(let r of e.split(`
`))r.startsWith(`event:`)&&(t=r.slice(6).trim()),r.startsWith(`data:`)&&n.push(r.slice(5).replace(/^ /,``));return n.length?{name:t,data:n.join(`
`)}:null}export{e as t};